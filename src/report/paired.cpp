#include "report/paired.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "base/error.h"

namespace precis {
namespace {

// Sums of decimal scores are off by less; a difference below it is none.
constexpr double kRounding = 1e-12;

// std::mt19937_64 and std::seed_seq are defined to the bit, the distributions of <random> are not.
std::mt19937_64 generator_for(const Bootstrap& bootstrap, const std::string& stream) {
  std::vector<std::uint32_t> words = {static_cast<std::uint32_t>(bootstrap.seed),
                                      static_cast<std::uint32_t>(bootstrap.seed >> 32)};
  for (const char c : stream) words.push_back(static_cast<unsigned char>(c));
  std::seed_seq sequence(words.begin(), words.end());
  return std::mt19937_64(sequence);
}

double plain_mean(std::span<const Unit> units) {
  double sum = 0;
  std::size_t count = 0;
  for (const Unit& unit : units) {
    sum += unit.sum;
    count += unit.count;
  }
  return count == 0 ? 0 : sum / static_cast<double>(count);
}

std::optional<Interval> percentile_interval(const std::vector<double>& means, double level) {
  if (means.empty()) return {};
  const double tail = (1 - level) / 2;
  return Interval{quantile_of(means, tail), quantile_of(means, 1 - tail)};
}

void count_signs(std::span<const Unit> differences, Comparison& to) {
  for (const Unit& unit : differences) {
    if (unit.sum > kRounding)
      ++to.wins;
    else if (unit.sum < -kRounding)
      ++to.losses;
    else
      ++to.ties;
  }
}

bool all_score(const std::vector<Unit>& units, double score) {
  return std::all_of(units.begin(), units.end(), [score](const Unit& u) {
    return u.sum == score * static_cast<double>(u.count);
  });
}

// What n samples that all score 0, or all 1, leave open.
Interval unanimous_interval(double score, std::size_t n, double level) {
  const double bound = std::pow((1 - level) / 2, 1 / static_cast<double>(n));
  return score == 1 ? Interval{bound, 1} : Interval{0, 1 - bound};
}

void decide(Comparison& c) {
  const auto& interval = c.difference.interval;
  const bool holds_zero = !interval || (interval->low <= kRounding && interval->high >= -kRounding);
  c.distinguishable = !holds_zero && c.wins + c.losses >= kFewestDiffering;
}

}  // namespace

double quantile_of(std::vector<double> values, double q) {
  PRECIS_CHECK(!values.empty() && q >= 0 && q <= 1, values.size(), " ", q);
  const double place = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(below);
  std::nth_element(values.begin(), at, values.end());
  const double fraction = place - static_cast<double>(below);
  if (fraction == 0 || at + 1 == values.end()) return *at;
  const double above = *std::min_element(at + 1, values.end());
  return *at + fraction * (above - *at);
}

Resampled resample(std::vector<Unit> units, const Bootstrap& bootstrap, const std::string& stream) {
  Resampled out{std::move(units), {}};
  const std::size_t n = out.units.size();
  for (const Unit& unit : out.units) PRECIS_CHECK(unit.count > 0, n);
  PRECIS_CHECK(n >> 32 == 0, n);
  if (n < 2) return out;
  std::mt19937_64 generator = generator_for(bootstrap, stream);
  out.means.reserve(bootstrap.n_resamples);
  for (std::size_t r = 0; r < bootstrap.n_resamples; ++r) {
    double sum = 0;
    std::size_t count = 0;
    const auto take = [&](std::uint64_t bits32) {
      const Unit& unit = out.units[(bits32 * n) >> 32];
      sum += unit.sum;
      count += unit.count;
    };
    for (std::size_t i = 0; i < n; i += 2) {  // two draws of 32 bits from each number
      const std::uint64_t bits = generator();
      take(bits >> 32);
      if (i + 1 < n) take(bits & 0xffffffff);
    }
    out.means.push_back(sum / static_cast<double>(count));
  }
  return out;
}

Resampled difference_of(const Resampled& a, const Resampled& b) {
  PRECIS_CHECK(a.units.size() == b.units.size() && a.means.size() == b.means.size(), a.units.size(),
               " vs ", b.units.size());
  Resampled out = a;
  for (std::size_t i = 0; i < out.units.size(); ++i) {
    PRECIS_CHECK(out.units[i].count == b.units[i].count, out.units[i].count, " vs ",
                 b.units[i].count);
    out.units[i].sum -= b.units[i].sum;
  }
  for (std::size_t i = 0; i < out.means.size(); ++i) out.means[i] -= b.means[i];
  return out;
}

Estimate mean_of(const Resampled& resampled, const Bootstrap& bootstrap) {
  return {plain_mean(resampled.units), percentile_interval(resampled.means, bootstrap.level),
          resampled.units.size()};
}

Estimate score_of(const Resampled& resampled, const Bootstrap& bootstrap) {
  Estimate out = mean_of(resampled, bootstrap);
  for (const double score : {0.0, 1.0})
    if (out.n_units > 0 && all_score(resampled.units, score))
      out.interval = unanimous_interval(score, out.n_units, bootstrap.level);
  return out;
}

Comparison judge(const Resampled& difference, const Bootstrap& bootstrap) {
  Comparison out;
  out.difference = mean_of(difference, bootstrap);
  count_signs(difference.units, out);
  decide(out);
  return out;
}

Comparison compare_paired(std::span<const Unit> a, std::span<const Unit> b,
                          const Bootstrap& bootstrap, const std::string& stream) {
  return judge(difference_of(resample({a.begin(), a.end()}, bootstrap, stream),
                             resample({b.begin(), b.end()}, bootstrap, stream)),
               bootstrap);
}

void MacroAverage::add(const Resampled& task) {
  PRECIS_CHECK(!task.units.empty());
  ++n_tasks_;
  sum_ += plain_mean(task.units);
  counts_.difference.n_units += task.units.size();
  count_signs(task.units, counts_);
  fewest_units_ = n_tasks_ == 1 ? task.units.size() : std::min(fewest_units_, task.units.size());
  all_zero_ = all_zero_ && all_score(task.units, 0);
  all_one_ = all_one_ && all_score(task.units, 1);
  if (task.means.empty()) has_interval_ = false;
  if (!has_interval_) return;
  resampled_sums_.resize(task.means.size());
  PRECIS_CHECK(resampled_sums_.size() == task.means.size(), task.means.size());
  for (std::size_t i = 0; i < task.means.size(); ++i) resampled_sums_[i] += task.means[i];
}

Estimate MacroAverage::mean(const Bootstrap& bootstrap) const {
  PRECIS_CHECK(n_tasks_ > 0);
  const double n = static_cast<double>(n_tasks_);
  Estimate out{sum_ / n, {}, counts_.difference.n_units};
  if (!has_interval_) return out;
  const auto sums = percentile_interval(resampled_sums_, bootstrap.level);
  out.interval = Interval{sums->low / n, sums->high / n};
  return out;
}

// Of tasks with means p, all of n samples each score 1 with a probability of at most mean(p)^(k n):
// the geometric mean is not above the arithmetic one. Samples that larger tasks have more of are
// left out of the count.
Estimate MacroAverage::score(const Bootstrap& bootstrap) const {
  Estimate out = mean(bootstrap);
  if (all_zero_ || all_one_)
    out.interval = unanimous_interval(all_one_ ? 1 : 0, n_tasks_ * fewest_units_, bootstrap.level);
  return out;
}

Comparison MacroAverage::judge(const Bootstrap& bootstrap) const {
  Comparison out = counts_;
  out.difference = mean(bootstrap);
  decide(out);
  return out;
}

}  // namespace precis
