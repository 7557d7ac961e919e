#include "eval/cma_es.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "base/error.h"

namespace precis {
namespace {

// Below this share of the largest eigenvalue an axis would stop the search in its direction.
constexpr double kLeastEigenvalue = 1e-14;

double squared_norm(const std::vector<double>& x) {
  return std::inner_product(x.begin(), x.end(), x.begin(), 0.0);
}

}  // namespace

std::vector<double> symmetric_eigen(std::vector<double> matrix, std::size_t n,
                                    std::vector<double>& vectors) {
  vectors.assign(n * n, 0);
  for (std::size_t i = 0; i < n; ++i) vectors[i * n + i] = 1;
  const auto off_diagonal = [&] {
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j < i; ++j) sum += matrix[i * n + j] * matrix[i * n + j];
    return sum;
  };
  const double scale = squared_norm(matrix);
  // Converges quadratically; 8 to 10 sweeps are usual.
  for (int sweep = 0; sweep < 64 && off_diagonal() > 1e-30 * scale; ++sweep)
    for (std::size_t p = 0; p + 1 < n; ++p)
      for (std::size_t q = p + 1; q < n; ++q) {
        const double apq = matrix[p * n + q];
        if (apq == 0) continue;
        const double theta = (matrix[q * n + q] - matrix[p * n + p]) / (2 * apq);
        const double t = (theta < 0 ? -1 : 1) / (std::abs(theta) + std::sqrt(theta * theta + 1));
        const double c = 1 / std::sqrt(t * t + 1);
        const double s = t * c;
        for (std::size_t k = 0; k < n; ++k) {
          const double kp = matrix[k * n + p];
          const double kq = matrix[k * n + q];
          matrix[k * n + p] = c * kp - s * kq;
          matrix[k * n + q] = s * kp + c * kq;
        }
        for (std::size_t k = 0; k < n; ++k) {
          const double pk = matrix[p * n + k];
          const double qk = matrix[q * n + k];
          matrix[p * n + k] = c * pk - s * qk;
          matrix[q * n + k] = s * pk + c * qk;
          const double vp = vectors[k * n + p];
          const double vq = vectors[k * n + q];
          vectors[k * n + p] = c * vp - s * vq;
          vectors[k * n + q] = s * vp + c * vq;
        }
      }
  std::vector<double> values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = matrix[i * n + i];
  return values;
}

// Constants: Table 1 of the tutorial.
CmaEs::CmaEs(std::vector<double> start, double sigma, std::size_t population, std::uint64_t seed)
    : n_(start.size()), random_(seed), sigma_(sigma), mean_(std::move(start)) {
  PRECIS_CHECK(n_ > 0 && sigma > 0, n_, " numbers, step ", sigma);
  const auto n = static_cast<double>(n_);
  n_points_ = population > 0 ? population : 4 + static_cast<std::size_t>(3 * std::log(n));
  PRECIS_CHECK(n_points_ >= 2, n_points_);
  const std::size_t mu = n_points_ / 2;
  for (std::size_t i = 0; i < mu; ++i)
    weights_.push_back(std::log((static_cast<double>(n_points_) + 1) / 2) -
                       std::log(static_cast<double>(i) + 1));
  const double sum = std::accumulate(weights_.begin(), weights_.end(), 0.0);
  for (double& weight : weights_) weight /= sum;
  mu_eff_ = 1 / squared_norm(weights_);
  c_sigma_ = (mu_eff_ + 2) / (n + mu_eff_ + 5);
  d_sigma_ = 1 + 2 * std::max(0.0, std::sqrt((mu_eff_ - 1) / (n + 1)) - 1) + c_sigma_;
  c_c_ = (4 + mu_eff_ / n) / (n + 4 + 2 * mu_eff_ / n);
  c_1_ = 2 / ((n + 1.3) * (n + 1.3) + mu_eff_);
  c_mu_ =
      std::min(1 - c_1_, 2 * (0.25 + mu_eff_ + 1 / mu_eff_ - 2) / ((n + 2) * (n + 2) + mu_eff_));
  chi_ = std::sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n * n));
  path_sigma_.assign(n_, 0);
  path_c_.assign(n_, 0);
  covariance_.assign(n_ * n_, 0);
  for (std::size_t i = 0; i < n_; ++i) covariance_[i * n_ + i] = 1;
  axes_ = covariance_;
  lengths_.assign(n_, 1);
}

// Box and Muller: the standard library's distributions differ between platforms.
double CmaEs::draw_normal() {
  if (has_spare_) {
    has_spare_ = false;
    return spare_normal_;
  }
  const double u = (static_cast<double>(random_.bits() >> 11) + 0.5) * 0x1p-53;
  const double v = static_cast<double>(random_.bits() >> 11) * 0x1p-53;
  const double radius = std::sqrt(-2 * std::log(u));
  spare_normal_ = radius * std::sin(2 * std::numbers::pi * v);
  has_spare_ = true;
  return radius * std::cos(2 * std::numbers::pi * v);
}

const std::vector<std::vector<double>>& CmaEs::ask() {
  points_.assign(n_points_, mean_);
  std::vector<double> z(n_);
  for (std::vector<double>& point : points_) {
    for (std::size_t j = 0; j < n_; ++j) z[j] = lengths_[j] * draw_normal();
    for (std::size_t i = 0; i < n_; ++i)
      for (std::size_t j = 0; j < n_; ++j) point[i] += sigma_ * axes_[i * n_ + j] * z[j];
  }
  return points_;
}

void CmaEs::tell(std::span<const double> values) {
  PRECIS_CHECK(values.size() == n_points_ && points_.size() == n_points_, values.size(), " of ",
               n_points_);
  std::vector<std::size_t> order(n_points_);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return values[a] < values[b]; });
  std::vector<std::vector<double>> steps;  // of the better half, over sigma
  std::vector<double> step(n_);            // of the mean, over sigma
  for (std::size_t k = 0; k < weights_.size(); ++k) {
    std::vector<double>& own = steps.emplace_back(n_);
    for (std::size_t i = 0; i < n_; ++i) {
      own[i] = (points_[order[k]][i] - mean_[i]) / sigma_;
      step[i] += weights_[k] * own[i];
    }
  }
  for (std::size_t i = 0; i < n_; ++i) mean_[i] += sigma_ * step[i];
  // C^(-1/2) step, by the axes.
  std::vector<double> whitened(n_);
  for (std::size_t j = 0; j < n_; ++j) {
    double along = 0;
    for (std::size_t i = 0; i < n_; ++i) along += axes_[i * n_ + j] * step[i];
    along /= lengths_[j];
    for (std::size_t i = 0; i < n_; ++i) whitened[i] += axes_[i * n_ + j] * along;
  }
  const double gain = std::sqrt(c_sigma_ * (2 - c_sigma_) * mu_eff_);
  for (std::size_t i = 0; i < n_; ++i)
    path_sigma_[i] = (1 - c_sigma_) * path_sigma_[i] + gain * whitened[i];
  ++n_generations_;
  const double length = std::sqrt(squared_norm(path_sigma_));
  const double settled =
      std::sqrt(1 - std::pow(1 - c_sigma_, 2 * static_cast<double>(n_generations_)));
  const bool stalled =
      length / settled >= (1.4 + 2 / (static_cast<double>(n_) + 1)) * chi_;  // h_sigma = 0
  for (std::size_t i = 0; i < n_; ++i) {
    path_c_[i] *= 1 - c_c_;
    if (!stalled) path_c_[i] += std::sqrt(c_c_ * (2 - c_c_) * mu_eff_) * step[i];
  }
  adapt_covariance(steps, stalled);
  // A step of more than e in one generation is never a good one.
  sigma_ *= std::exp(std::min(1.0, c_sigma_ / d_sigma_ * (length / chi_ - 1)));
  points_.clear();
}

void CmaEs::adapt_covariance(const std::vector<std::vector<double>>& best_steps, bool stalled) {
  const double lost = stalled ? c_1_ * c_c_ * (2 - c_c_) : 0;
  for (std::size_t i = 0; i < n_; ++i)
    for (std::size_t j = 0; j < n_; ++j) {
      double& c = covariance_[i * n_ + j];
      c *= 1 - c_1_ - c_mu_ + lost;
      c += c_1_ * path_c_[i] * path_c_[j];
      for (std::size_t k = 0; k < best_steps.size(); ++k)
        c += c_mu_ * weights_[k] * best_steps[k][i] * best_steps[k][j];
    }
  std::vector<double> eigenvalues = symmetric_eigen(covariance_, n_, axes_);
  const double least = kLeastEigenvalue *
                       std::max(1e-300, *std::max_element(eigenvalues.begin(), eigenvalues.end()));
  for (std::size_t j = 0; j < n_; ++j) lengths_[j] = std::sqrt(std::max(least, eigenvalues[j]));
}

}  // namespace precis
