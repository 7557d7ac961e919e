#include "eval/budget_search.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "eval/cma_es.h"

namespace precis {
namespace {

// Shares differ by a factor of exp(6) at most: beyond, protected tokens alone are more, or all
// tokens fewer, at any keep that matters.
constexpr double kMostLogShare = 3.0;
// Shares are rounded to what the file says, so that a candidate is worth what its file is.
constexpr double kShareStep = 1e-4;
constexpr double kLeastShare = 1e-3;

std::vector<double> shares_of(const std::vector<double>& logs) {
  std::vector<double> shares;
  double sum = 0;
  for (const double log : logs) {
    shares.push_back(std::exp(std::clamp(log, -kMostLogShare, kMostLogShare)));
    sum += shares.back();
  }
  const double scale = static_cast<double>(shares.size()) / sum;
  for (double& share : shares)
    // Divided, not multiplied, so that the double is the one nearest to the decimal number.
    share = std::max(kLeastShare, std::round(share * scale / kShareStep) / (1 / kShareStep));
  return shares;
}

// What CMA-ES is told of candidates whose values are known or not.
class Ledger {
 public:
  Ledger(std::vector<double>& values, const BudgetSearch::Evaluate& evaluate)
      : values_(values), evaluate_(evaluate) {}

  double value(const std::vector<double>& logs) {
    std::vector<double> shares = shares_of(logs);
    if (next_ == values_.size()) {
      const double value = evaluate_(shares);
      if (!std::isfinite(value))
        throw Error(ErrorCode::kInternal, concat("candidate ", next_, " is worth ", value,
                                                 ": the model's logits are not finite"));
      values_.push_back(value);
      is_new_ = true;
    }
    const double value = values_[next_++];
    if (next_ == 1 || value < best_.value) {
      best_ = {std::move(shares), value};
      best_logs_ = logs;
    }
    return value;
  }

  // Whether anything was evaluated since the last call.
  bool take_new() { return std::exchange(is_new_, false); }
  const LayerShares& best() const { return best_; }
  const std::vector<double>& best_logs() const { return best_logs_; }

 private:
  std::vector<double>& values_;
  const BudgetSearch::Evaluate& evaluate_;
  std::size_t next_ = 0;
  bool is_new_ = false;
  LayerShares best_;
  std::vector<double> best_logs_;
};

}  // namespace

BudgetSearch::BudgetSearch(std::size_t n_layers, const BudgetSearchOptions& options)
    : n_layers_(n_layers), options_(options) {
  PRECIS_CHECK(n_layers >= 2 && options.group > 0 && options.generations > 0 && options.sigma > 0 &&
                   options.population != 1,
               n_layers);
}

std::size_t BudgetSearch::population_of(std::size_t group) const {
  const std::size_t first = group * options_.group;
  const std::size_t n = std::min(options_.group, n_layers_ - first);
  return CmaEs(std::vector<double>(n), options_.sigma, options_.population, 0).population();
}

std::size_t BudgetSearch::n_candidates() const {
  std::size_t n = 1;
  for (std::size_t group = 0; group < n_groups(); ++group)
    n += options_.generations * population_of(group);
  return n;
}

LayerShares BudgetSearch::run(std::vector<double>& values, const Evaluate& evaluate,
                              const Note& note) const {
  if (values.size() > n_candidates())
    throw Error(ErrorCode::kFormat, concat("the search so far has ", values.size(),
                                           " candidates, all of it has ", n_candidates()));
  Ledger ledger(values, evaluate);
  const auto tell = [&] {
    if (ledger.take_new() && note) note(ledger.best());
  };
  ledger.value(std::vector<double>(n_layers_));
  tell();
  for (std::size_t group = 0; group < n_groups(); ++group) {
    const std::vector<double> start = ledger.best_logs();
    const auto begin = start.begin() + static_cast<std::ptrdiff_t>(group * options_.group);
    const std::size_t n = std::min(options_.group, n_layers_ - group * options_.group);
    CmaEs search({begin, begin + static_cast<std::ptrdiff_t>(n)}, options_.sigma,
                 options_.population, RandomSource(options_.seed, "evolve", group).bits());
    for (std::size_t generation = 0; generation < options_.generations; ++generation) {
      std::vector<double> worth;
      for (const std::vector<double>& point : search.ask()) {
        std::vector<double> logs = start;
        std::copy(point.begin(), point.end(), logs.begin() + (begin - start.begin()));
        worth.push_back(ledger.value(logs));
      }
      search.tell(worth);
      tell();
    }
  }
  return ledger.best();
}

}  // namespace precis
