// How sure a mean and a difference of means are: the bootstrap over samples. The questions of a
// sample share its context, so they are resampled together. Two methods that answered the same
// samples are resampled alike, which is the paired bootstrap: what makes a sample hard cancels out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace precis {

// What one sample brought.
struct Unit {
  double sum = 0;         // over its questions
  std::size_t count = 1;  // of questions, at least 1
};

struct Bootstrap {
  std::size_t n_resamples = 10000;
  std::uint64_t seed = 1;
  double level = 0.95;  // of the intervals
};

struct Interval {
  double low = 0;
  double high = 0;
};

struct Estimate {
  double value = 0;
  std::optional<Interval> interval;  // nothing if there are too few samples to tell
  std::size_t n_units = 0;
};

// Samples with their resampled means; equal bootstrap, stream and number of units: equal draws.
struct Resampled {
  std::vector<Unit> units;
  std::vector<double> means;  // empty for fewer than two units
};

// `stream` tells independent sets of samples apart, by any name; the same one gives the same
// numbers on every machine. REQUIRES: no unit without questions, fewer than 2^32 units.
Resampled resample(std::vector<Unit> units, const Bootstrap& bootstrap, const std::string& stream);

// a - b, sample by sample. REQUIRES: the same samples, equally many questions each, resampled
// alike.
Resampled difference_of(const Resampled& a, const Resampled& b);

// The mean over all questions and the percentile interval (interpolated between order statistics).
// Nothing is known about the interval of one sample.
Estimate mean_of(const Resampled& resampled, const Bootstrap& bootstrap);

// The same for scores in [0, 1]. Where all are 0, or all 1, every resample is the same, and the
// interval is what n such samples leave open: with tail = (1 - level) / 2 up to 1 - tail^(1/n), or
// down to tail^(1/n). It is Clopper and Pearson's for shares and holds for any score in [0, 1].
Estimate score_of(const Resampled& resampled, const Bootstrap& bootstrap);

// Whether a method scores otherwise than another.
struct Comparison {
  Estimate difference;
  std::size_t wins = 0;  // samples with a higher mean than the other's
  std::size_t losses = 0;
  std::size_t ties = 0;
  // The interval does not hold 0, and at least kFewestDiffering samples differ.
  bool distinguishable = false;
};

// With fewer samples that differ no exact test of signs could reach 5 %: 2 * 2^-5 > 0.05.
constexpr std::size_t kFewestDiffering = 6;

// Of a difference (difference_of).
Comparison judge(const Resampled& difference, const Bootstrap& bootstrap);
// resample, difference_of and judge in one.
Comparison compare_paired(std::span<const Unit> a, std::span<const Unit> b,
                          const Bootstrap& bootstrap, const std::string& stream);

// The average of the means of several tasks, each counting alike, each resampled by itself: the
// stratified bootstrap. A task of one sample has no interval, and then the average has none.
class MacroAverage {
 public:
  void add(const Resampled& task);
  std::size_t n_tasks() const { return n_tasks_; }
  // REQUIRES: at least one task.
  Estimate mean(const Bootstrap& bootstrap) const;
  // The same for scores in [0, 1]. Where all samples score 0, or all 1, the interval is that of
  // score_of() for as many tasks of as many samples as the smallest has.
  Estimate score(const Bootstrap& bootstrap) const;
  // When what was added are differences.
  Comparison judge(const Bootstrap& bootstrap) const;

 private:
  std::size_t n_tasks_ = 0;
  double sum_ = 0;
  std::vector<double> resampled_sums_;
  bool has_interval_ = true;
  std::size_t fewest_units_ = 0;
  bool all_zero_ = true;
  bool all_one_ = true;
  Comparison counts_;
};

// The q-quantile, 0 <= q <= 1, linear between order statistics: numpy's default. REQUIRES: not
// empty.
double quantile_of(std::vector<double> values, double q);

}  // namespace precis
