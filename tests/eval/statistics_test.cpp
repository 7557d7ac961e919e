#include "eval/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "eval/cost_model.h"

namespace precis {
namespace {

using Values = std::vector<double>;

TEST(Statistics, AgreeWithHandComputedNumbers) {
  const Values v = {2, 4, 4, 4, 5, 5, 7, 9};
  EXPECT_DOUBLE_EQ(mean_of(v), 5.0);
  EXPECT_DOUBLE_EQ(stddev_of(v), std::sqrt(32.0 / 7.0));  // squares of distances: 32
  EXPECT_DOUBLE_EQ(median_of(v), 4.5);
  EXPECT_DOUBLE_EQ(median_of(Values{9, 1, 4}), 4.0);
  EXPECT_DOUBLE_EQ(median_of(Values{3}), 3.0);
  EXPECT_EQ(mean_of(Values{}), 0.0);
  EXPECT_EQ(median_of(Values{}), 0.0);
  EXPECT_EQ(stddev_of(Values{3}), 0.0);
}

TEST(Statistics, RatiosAreOfTheSameRepetition) {
  EXPECT_EQ(paired_ratios(Values{6, 9, 1}, Values{2, 3, 4}), (Values{3, 3, 0.25}));
}

TEST(Statistics, FitsWhatIsExact) {
  const auto line = fit_line(Values{1, 10, 1000}, Values{5, 23, 2003});  // 3 + 2x
  ASSERT_TRUE(line);
  EXPECT_NEAR(line->constant, 3, 1e-9);
  EXPECT_NEAR(line->linear, 2, 1e-9);
  EXPECT_NEAR(line->worst_residual, 0, 1e-9);
  EXPECT_NEAR(line->at(100), 203, 1e-9);
  const auto curve = fit_quadratic(Values{1, 2, 10}, Values{7, 18, 250});  // 5x + 2x^2
  ASSERT_TRUE(curve);
  EXPECT_NEAR(curve->linear, 5, 1e-9);
  EXPECT_NEAR(curve->quadratic, 2, 1e-9);
  EXPECT_EQ(curve->constant, 0);
  EXPECT_NEAR(curve->at(3), 33, 1e-9);
}

// Through (1, 1), (2, 2), (4, 8), relative errors: minimise (a+b-1)^2 + ((a+2b-2)/2)^2 +
// ((a+4b-8)/8)^2. With a < 0 left out, b = (1 + 1 + 1/2) / (1 + 1 + 1/4) = 10/9.
TEST(Statistics, ACostIsNeverNegative) {
  const auto line = fit_line(Values{1, 2, 4}, Values{1, 2, 8});
  ASSERT_TRUE(line);
  EXPECT_EQ(line->constant, 0);
  EXPECT_NEAR(line->linear, 10.0 / 9.0, 1e-12);
  EXPECT_NEAR(line->worst_residual, 1 - 4 * 10.0 / 9.0 / 8, 1e-12);
  const auto flat = fit_line(Values{1, 2}, Values{4, 2});  // falls: the slope is left out
  ASSERT_TRUE(flat);
  EXPECT_EQ(flat->linear, 0);
  EXPECT_NEAR(flat->constant, 0.75 / (1.0 / 16 + 1.0 / 4), 1e-12);
}

TEST(Statistics, NoFitWithoutTwoSizes) {
  EXPECT_FALSE(fit_line(Values{}, Values{}));
  EXPECT_FALSE(fit_line(Values{5}, Values{1}));
  EXPECT_FALSE(fit_line(Values{5, 5}, Values{1, 2}));
  EXPECT_FALSE(fit_line(Values{1, 2}, Values{0, 2}));
  EXPECT_FALSE(fit_quadratic(Values{3, 3}, Values{1, 1}));
}

// step = 1 ms + 1 us a kB, compress = 2 ms + 10 us a token, 20 kB a token full and 5 kept, 10
// answer tokens: a prompt token saves 10 * 15 us = 150 us and costs 10 us; 2 ms / 140 us = 14.29
// tokens.
TEST(CostModel, BreakEvenIsWhereSavingsPassTheCosts) {
  const std::vector<CostSample> steps = {{0, 1e-3}, {1e6, 2e-3}, {5e6, 6e-3}};
  const std::vector<CostSample> compress = {{100, 3e-3}, {1000, 12e-3}};
  const BreakEvenResult found = break_even_prompt({steps, compress, 20e3, 5e3, 10});
  EXPECT_EQ(found.kind, BreakEven::kFrom);
  EXPECT_EQ(found.n_prompt, 15u);
  // Saves 10 us a prompt token, no more than it costs.
  EXPECT_EQ(break_even_prompt({steps, compress, 20e3, 19e3, 10}).kind, BreakEven::kNever);
  EXPECT_EQ(break_even_prompt({steps, compress, 20e3, 5e3, 0}).kind, BreakEven::kNever);
}

TEST(CostModel, UnknownWithoutTwoSizes) {
  const std::vector<CostSample> two = {{1, 1e-3}, {2, 2e-3}};
  const std::vector<CostSample> one = {{1, 1e-3}};
  EXPECT_EQ(break_even_prompt({one, two, 2, 1, 8}).kind, BreakEven::kUnknown);
  EXPECT_EQ(break_even_prompt({two, one, 2, 1, 8}).kind, BreakEven::kUnknown);
  EXPECT_EQ(break_even_prompt({two, {}, 2, 1, 8}).kind, BreakEven::kUnknown);
}

}  // namespace
}  // namespace precis
