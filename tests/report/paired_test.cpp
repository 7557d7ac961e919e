#include "report/paired.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace precis {
namespace {

std::vector<Unit> units(const std::vector<double>& values) {
  std::vector<Unit> out;
  for (const double v : values) out.push_back({v, 1});
  return out;
}

std::vector<Unit> normal_units(std::size_t n, double mean, double deviation, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal(mean, deviation);
  std::vector<Unit> out;
  for (std::size_t i = 0; i < n; ++i) out.push_back({normal(generator), 1});
  return out;
}

TEST(Quantile, IsLinearBetweenOrderStatistics) {
  EXPECT_DOUBLE_EQ(quantile_of({3, 1, 2}, 0.5), 2);
  EXPECT_DOUBLE_EQ(quantile_of({4, 1, 3, 2}, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(quantile_of({4, 1, 3, 2}, 0), 1);
  EXPECT_DOUBLE_EQ(quantile_of({4, 1, 3, 2}, 1), 4);
  EXPECT_DOUBLE_EQ(quantile_of({10, 20, 30, 40, 50}, 0.1), 14);
  EXPECT_DOUBLE_EQ(quantile_of({7}, 0.3), 7);
}

// Two units a < b: a resample has the mean a, the middle or b with 1/4, 1/2, 1/4, so at any level
// above one half the percentile interval is [a, b], and within it [middle, middle].
TEST(PairedBootstrap, TwoUnitsInClosedForm) {
  const Resampled r = resample(units({1, 3}), {.n_resamples = 20000}, "x");
  std::size_t n[3] = {0, 0, 0};
  for (const double mean : r.means) ++n[static_cast<int>(mean) - 1];
  EXPECT_NEAR(static_cast<double>(n[0]) / 20000, 0.25, 0.015);  // five standard errors
  EXPECT_NEAR(static_cast<double>(n[1]) / 20000, 0.50, 0.018);
  EXPECT_NEAR(static_cast<double>(n[2]) / 20000, 0.25, 0.015);
  const Estimate wide = mean_of(r, {.level = 0.6});
  EXPECT_EQ(wide.value, 2);
  EXPECT_EQ(wide.interval->low, 1);
  EXPECT_EQ(wide.interval->high, 3);
  const Estimate narrow = mean_of(r, {.level = 0.4});
  EXPECT_EQ(narrow.interval->low, 2);
  EXPECT_EQ(narrow.interval->high, 2);
}

// Many units: the central limit theorem gives mean -+ 1.96 s / sqrt(n), s with divisor n.
TEST(PairedBootstrap, ManyUnitsAreNormal) {
  const std::vector<Unit> values = normal_units(400, 5, 2, 1);
  double mean = 0;
  for (const Unit& u : values) mean += u.sum / 400;
  double variance = 0;
  for (const Unit& u : values) variance += (u.sum - mean) * (u.sum - mean) / 400;
  const double half = 1.959964 * std::sqrt(variance / 400);
  const Estimate e = mean_of(resample(values, {.n_resamples = 40000}, "x"), {});
  EXPECT_NEAR(e.value, mean, 1e-12);
  EXPECT_NEAR(e.interval->low, mean - half, 0.04 * half);
  EXPECT_NEAR(e.interval->high, mean + half, 0.04 * half);
}

TEST(PairedBootstrap, IntervalsCoverTheTruth) {
  int n_mean = 0;
  int n_difference = 0;
  int n_wrong = 0;
  const int n_trials = 600;
  const Bootstrap bootstrap{.n_resamples = 1000};
  for (int t = 0; t < n_trials; ++t) {
    const std::vector<Unit> hardness = normal_units(60, 0.5, 0.2, 10000 + t);
    std::vector<Unit> a = normal_units(60, 0, 0.05, 20000 + t);
    std::vector<Unit> b = normal_units(60, 0, 0.05, 30000 + t);
    for (std::size_t i = 0; i < a.size(); ++i) {
      a[i].sum += hardness[i].sum;
      b[i].sum += hardness[i].sum;
    }
    const Interval mean = *mean_of(resample(a, bootstrap, "x"), bootstrap).interval;
    n_mean += mean.low <= 0.5 && 0.5 <= mean.high;
    const Comparison c = compare_paired(a, b, bootstrap, "x");
    n_difference += c.difference.interval->low <= 0 && 0 <= c.difference.interval->high;
    n_wrong += c.distinguishable;
    // Pairing takes the hardness out: sqrt(2) * 0.05 against 0.2 in the interval's length.
    EXPECT_LT(c.difference.interval->high - c.difference.interval->low,
              0.6 * (mean.high - mean.low));
  }
  // 95 % less the known shortfall of percentile intervals, -+ three standard errors of 600 trials.
  EXPECT_NEAR(n_mean, 0.94 * n_trials, 0.03 * n_trials);
  EXPECT_NEAR(n_difference, 0.94 * n_trials, 0.03 * n_trials);
  EXPECT_EQ(n_wrong, n_trials - n_difference);
}

TEST(PairedBootstrap, TheSameAnswersAreExactlyTheSame) {
  const std::vector<Unit> a = normal_units(37, 0.4, 0.3, 3);
  const Comparison c = compare_paired(a, a, {}, "x");
  EXPECT_EQ(c.difference.value, 0);
  EXPECT_EQ(c.difference.interval->low, 0);
  EXPECT_EQ(c.difference.interval->high, 0);
  EXPECT_EQ(c.ties, 37u);
  EXPECT_EQ(c.wins + c.losses, 0u);
  EXPECT_FALSE(c.distinguishable);
}

TEST(PairedBootstrap, AShiftOfBothChangesNothingAndOfOneShiftsAll) {
  const std::vector<Unit> a = normal_units(50, 0.4, 0.3, 4);
  const std::vector<Unit> b = normal_units(50, 0.3, 0.3, 5);
  const auto shifted = [](std::vector<Unit> values, double by) {
    for (Unit& u : values) u.sum += by;
    return values;
  };
  const Comparison plain = compare_paired(a, b, {}, "x");
  const Comparison both = compare_paired(shifted(a, 2), shifted(b, 2), {}, "x");
  const Comparison one = compare_paired(shifted(a, 2), b, {}, "x");
  EXPECT_NEAR(both.difference.value, plain.difference.value, 1e-12);
  EXPECT_NEAR(both.difference.interval->low, plain.difference.interval->low, 1e-12);
  EXPECT_NEAR(both.difference.interval->high, plain.difference.interval->high, 1e-12);
  EXPECT_EQ(both.wins, plain.wins);
  EXPECT_NEAR(one.difference.value, plain.difference.value + 2, 1e-12);
  EXPECT_NEAR(one.difference.interval->low, plain.difference.interval->low + 2, 1e-12);
  EXPECT_TRUE(one.distinguishable);
  // And the other way round.
  const Comparison back = compare_paired(b, a, {}, "x");
  EXPECT_NEAR(back.difference.interval->low, -plain.difference.interval->high, 1e-12);
  EXPECT_EQ(back.wins, plain.losses);
}

TEST(PairedBootstrap, EqualInputsGiveEqualBits) {
  const std::vector<Unit> a = normal_units(30, 0.4, 0.3, 6);
  EXPECT_EQ(resample(a, {}, "x").means, resample(a, {}, "x").means);
  EXPECT_NE(resample(a, {}, "x").means, resample(a, {}, "y").means);
  EXPECT_NE(resample(a, {}, "x").means, resample(a, {.seed = 2}, "x").means);
  // Held as numbers, so that another machine or compiler that draws otherwise is noticed.
  const Resampled r = resample(units({0, 1, 2, 3, 4, 5, 6}), {.n_resamples = 4}, "task");
  std::vector<int> sums;
  for (const double mean : r.means) sums.push_back(static_cast<int>(std::lround(mean * 7)));
  EXPECT_EQ(sums, (std::vector<int>{17, 21, 25, 27}));
}

TEST(PairedBootstrap, QuestionsOfASampleStayTogether) {
  // Two samples of two questions: means 0 and 1 as wholes; apart, 1/4 and 3/4 would appear too.
  const Resampled r = resample({{0, 2}, {2, 2}}, {}, "x");
  for (const double mean : r.means) EXPECT_TRUE(mean == 0 || mean == 0.5 || mean == 1) << mean;
  // A sample of three questions counts three times.
  EXPECT_DOUBLE_EQ(mean_of(resample({{3, 3}, {0, 1}}, {}, "x"), {}).value, 0.75);
}

TEST(PairedBootstrap, SmallNumbersOfSamplesAreNotOverrated) {
  EXPECT_FALSE(mean_of(resample(units({0.3}), {}, "x"), {}).interval);
  EXPECT_EQ(mean_of(resample({}, {}, "x"), {}).n_units, 0u);
  // Five wins of five: a test of signs has p = 2 / 32.
  EXPECT_FALSE(
      compare_paired(units({1, 1, 1, 1, 1}), units({0, 0, 0, 0, 0}), {}, "x").distinguishable);
  EXPECT_TRUE(compare_paired(units({1, 1, 1, 1, 1, 1}), units({0, 0, 0, 0, 0, 0}), {}, "x")
                  .distinguishable);
}

TEST(PairedBootstrap, AllRightIsNotCertainlyAlwaysRight) {
  const Estimate all = score_of(resample(units({1, 1, 1, 1, 1}), {}, "x"), {});
  EXPECT_EQ(all.value, 1);
  EXPECT_NEAR(all.interval->low, 0.4782, 1e-4);  // Clopper-Pearson, 5 of 5
  EXPECT_EQ(all.interval->high, 1);
  const Estimate none = score_of(resample(units(std::vector<double>(50, 0.0)), {}, "x"), {});
  EXPECT_EQ(none.interval->low, 0);
  EXPECT_NEAR(none.interval->high, 0.0711, 1e-4);  // 0 of 50
  const Estimate one = score_of(resample(units({1}), {}, "x"), {});
  EXPECT_NEAR(one.interval->low, 0.025, 1e-12);
  // A mixed list is left to the bootstrap.
  const Resampled mixed = resample(units({1, 0, 1, 1}), {}, "x");
  EXPECT_EQ(score_of(mixed, {}).interval->low, mean_of(mixed, {}).interval->low);
}

TEST(MacroAverage, TasksCountAlikeWhateverTheirSize) {
  MacroAverage average;
  average.add(resample(units(std::vector<double>(100, 1.0)), {}, "a"));
  average.add(resample(units({0, 0.5}), {}, "b"));
  EXPECT_DOUBLE_EQ(average.mean({}).value, (1 + 0.25) / 2);
  EXPECT_EQ(average.n_tasks(), 2u);
  // All of the variance is in the second task: half of its interval's length.
  EXPECT_DOUBLE_EQ(average.mean({}).interval->low, 0.5);
  EXPECT_DOUBLE_EQ(average.mean({}).interval->high, 0.75);
}

TEST(MacroAverage, AllRightIsNotCertainlyAlwaysRight) {
  MacroAverage one;
  one.add(resample(units({1, 1, 1, 1, 1}), {}, "a"));
  EXPECT_NEAR(one.score({}).interval->low, 0.4782, 1e-4);  // as of the task alone
  EXPECT_EQ(one.mean({}).interval->low, 1);
  one.add(resample(units(std::vector<double>(40, 1.0)), {}, "b"));
  EXPECT_NEAR(one.score({}).interval->low, std::pow(0.025, 0.1), 1e-12);  // twice the five
  one.add(resample(units({0, 1}), {}, "c"));
  EXPECT_EQ(one.score({}).interval->low, one.mean({}).interval->low);
  MacroAverage none;
  none.add(resample(units({0}), {}, "a"));
  EXPECT_NEAR(none.score({}).interval->high, 0.975, 1e-12);
  none.add(resample(units({1}), {}, "b"));
  EXPECT_FALSE(none.score({}).interval);
}

// Independent tasks: the variance of the average is the sum of the variances / k^2.
TEST(MacroAverage, VariancesAdd) {
  MacroAverage average;
  double variance = 0;
  for (unsigned t = 0; t < 8; ++t) {
    const std::vector<Unit> values = normal_units(80, 0, 1 + 0.2 * t, 100 + t);
    double mean = 0;
    for (const Unit& u : values) mean += u.sum / 80;
    for (const Unit& u : values) variance += (u.sum - mean) * (u.sum - mean) / 80 / 80 / 64;
    average.add(resample(values, {}, std::to_string(t)));
  }
  const Estimate e = average.mean({});
  EXPECT_NEAR(e.interval->high - e.interval->low, 2 * 1.959964 * std::sqrt(variance),
              0.05 * std::sqrt(variance));
}

TEST(MacroAverage, DifferencesAddUp) {
  MacroAverage average;
  const Bootstrap bootstrap;
  for (const char* task : {"a", "b", "c"}) {
    const std::vector<Unit> a = normal_units(20, 0.6, 0.1, 7);
    std::vector<Unit> b = a;
    for (Unit& u : b) u.sum -= 0.25;
    average.add(difference_of(resample(a, bootstrap, task), resample(b, bootstrap, task)));
  }
  const Comparison c = average.judge(bootstrap);
  EXPECT_NEAR(c.difference.value, 0.25, 1e-12);
  EXPECT_NEAR(c.difference.interval->low, 0.25, 1e-12);
  EXPECT_EQ(c.wins, 60u);
  EXPECT_TRUE(c.distinguishable);
  // A task of one sample: nothing is known of its spread, so nothing of the average's.
  average.add(resample(units({0.5}), bootstrap, "d"));
  EXPECT_FALSE(average.mean(bootstrap).interval);
  EXPECT_FALSE(average.judge(bootstrap).distinguishable);
}

}  // namespace
}  // namespace precis
