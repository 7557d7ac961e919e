// The search for budgets of layers of EvolKV (Yu, Chai, arXiv 2509.08315): the layers are cut into
// groups of neighbours, and CMA-ES (cma_es.h) searches the budgets of one group after another, the
// first layers first, while the other groups keep what was best so far. What a candidate is worth
// is for the caller to say; nothing of the model is asked.
//
// Deviation: the paper was read as its abstract and in summaries; its code was not found. Groups of
//   8, the first step of 0.3 and the population of CMA-ES are what the summaries and CMA-ES itself
//   say; 10 generations a group are this project's choice.
// Deviation: a number is the logarithm of a layer's share, so that no budget is negative. The paper
//   searches entries.
// Deviation: every candidate is scaled to the same budget before it is tried. In the paper a term
// for
//   the size of the cache multiplies the task's score, and only the result is scaled.
// Deviation: the score of a candidate is KL to the full cache (budget_objective.h), not a task's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace precis {

struct BudgetSearchOptions {
  std::size_t group = 8;         // layers that are searched together
  std::size_t generations = 10;  // of each group
  std::size_t population = 0;    // candidates of a generation; 0: CMA-ES's own choice
  double sigma = 0.3;            // first step, in logarithms of shares
  std::uint64_t seed = 1;
};

struct LayerShares {
  std::vector<double> shares;  // [layers], mean 1 but for rounding, each at least 0.001
  double value = 0;            // lower is better
};

class BudgetSearch {
 public:
  // The value of a candidate, the same whenever it is asked; finite.
  using Evaluate = std::function<double(const std::vector<double>& shares)>;
  // After each generation that was not known yet, and after the first candidate; `values` has then
  // what was evaluated so far.
  using Note = std::function<void(const LayerShares& best)>;

  // REQUIRES: n_layers >= 2, all options > 0 but population, which is 0 or at least 2.
  BudgetSearch(std::size_t n_layers, const BudgetSearchOptions& options);

  // In all: the first one is all layers alike.
  std::size_t n_candidates() const;
  // Shares of which none is better than `best`: at worst all layers alike. `values` has those of
  // the first candidates, of an earlier call that was stopped; they are not evaluated again and the
  // search goes on as if it had not been stopped. Throws what evaluate throws; values are then
  // those that can be gone on from. Throws Error(kFormat) if values has more than n_candidates().
  LayerShares run(std::vector<double>& values, const Evaluate& evaluate, const Note& note) const;

 private:
  std::size_t n_groups() const { return (n_layers_ + options_.group - 1) / options_.group; }
  std::size_t population_of(std::size_t group) const;

  std::size_t n_layers_;
  BudgetSearchOptions options_;
};

}  // namespace precis
