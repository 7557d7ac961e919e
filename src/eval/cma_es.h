// CMA-ES: minimises a function of a few numbers that can only be evaluated.
//
// Hansen, "The CMA Evolution Strategy: A Tutorial", arXiv 1604.00772: weighted recombination of the
// better half, cumulative step-size adaptation, rank-one and rank-mu updates of the covariance,
// with its default constants.
//
// Deviation: only positive weights (the tutorial's active update also learns from the worse half).
// Deviation: sigma grows by a factor of e at most per generation, and eigenvalues stay above 1e-14.
//
//   CmaEs search(start, 0.3, 0, seed);
//   for (...) { const auto& points = search.ask(); ... search.tell(values); }
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tasks/random_source.h"

namespace precis {

class CmaEs {
 public:
  // sigma: standard deviation of the first points in every coordinate. population: points per
  // generation, at least 2; 0: 4 + floor(3 ln n). REQUIRES: start is not empty and finite, sigma >
  // 0.
  CmaEs(std::vector<double> start, double sigma, std::size_t population, std::uint64_t seed);

  std::size_t population() const { return n_points_; }
  // The points of the next generation, [population][n].
  const std::vector<std::vector<double>>& ask();
  // Their values, lower is better; equal ones rank by their order. REQUIRES: ask() came before;
  // finite.
  void tell(std::span<const double> values);

  const std::vector<double>& mean() const { return mean_; }
  double sigma() const { return sigma_; }

 private:
  double draw_normal();
  void adapt_covariance(const std::vector<std::vector<double>>& best_steps, bool stalled);

  std::size_t n_;
  std::size_t n_points_;
  std::vector<double> weights_;  // of the better half, summing to 1
  double mu_eff_ = 0;
  double c_sigma_ = 0, d_sigma_ = 0, c_c_ = 0, c_1_ = 0, c_mu_ = 0, chi_ = 0;
  RandomSource random_;
  double spare_normal_ = 0;
  bool has_spare_ = false;
  std::size_t n_generations_ = 0;
  double sigma_;
  std::vector<double> mean_;
  std::vector<double> path_sigma_;
  std::vector<double> path_c_;
  std::vector<double> covariance_;  // [n, n]
  std::vector<double> axes_;        // eigenvectors in columns, [n, n]
  std::vector<double> lengths_;     // square roots of the eigenvalues, [n]
  std::vector<std::vector<double>> points_;
};

// Eigenvalues (ascending order is not promised) of a symmetric matrix [n, n], and its eigenvectors
// as the columns of `vectors` [n, n]. Cyclic Jacobi.
std::vector<double> symmetric_eigen(std::vector<double> matrix, std::size_t n,
                                    std::vector<double>& vectors);

}  // namespace precis
