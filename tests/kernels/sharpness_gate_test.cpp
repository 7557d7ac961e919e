// The gate on partial states against softmaxes written out in double.
#include "kernels/sharpness_gate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/problem.h"

namespace precis::testing {
namespace {

TEST(SharpnessGate, FallsAlongALine) {
  const SharpnessGate gate{0.2f, 0.6f, 0.1f};
  EXPECT_EQ(gate.factor(0.0f), 1.0f);
  EXPECT_EQ(gate.factor(0.2f), 1.0f);
  EXPECT_NEAR(gate.factor(0.3f), 1 - 0.9 * 0.25, 1e-6);
  EXPECT_NEAR(gate.factor(0.5f), 1 - 0.9 * 0.75, 1e-6);
  EXPECT_EQ(gate.factor(0.6f), 0.1f);
  EXPECT_EQ(gate.factor(1.0f), 0.1f);
  EXPECT_EQ((SharpnessGate{0.5f, 0.5f, 0}.factor(0.5f)), 1.0f) << "a step is open up to low";
  EXPECT_EQ((SharpnessGate{0.5f, 0.5f, 0}.factor(0.51f)), 0.0f);
  EXPECT_TRUE(SharpnessGate{}.is_off());
  EXPECT_FALSE(gate.is_off());
}

TEST(SharpnessGate, CountsWhatItDid) {
  // Sharpness 1, 1/2 and 1/4.
  std::vector<float> max = {0, 0, 0}, sum = {1, 2, 4}, out(3 * 8);
  std::vector<float> gated_max = {0, 0, 0}, gated_sum = {1, 1, 1}, gated_out(3 * 8);
  const StateView rest{max.data(), sum.data(), out.data()};
  const StateView gated{gated_max.data(), gated_sum.data(), gated_out.data()};
  const GateTally tally = gate_states({0.25f, 0.75f, 0.5f}, rest, gated, 3, 8);
  EXPECT_EQ(tally.n_rows, 3u);
  EXPECT_EQ(tally.n_open, 1u);
  EXPECT_EQ(tally.n_closed, 1u);
  EXPECT_NEAR(tally.mean_factor(), (1 + 0.75 + 0.5) / 3, 1e-4);
  GateTally both = gate_states({}, rest, gated, 3, 8);
  EXPECT_EQ(both.n_open, 3u);
  EXPECT_EQ(both.mean_factor(), 1.0);
  both += tally;
  EXPECT_EQ(both.n_rows, 6u);
  EXPECT_EQ(both.n_open, 4u);
  EXPECT_EQ(GateTally{}.mean_factor(), 1.0);
}

States attend_to(const Problem& problem, std::size_t first, std::size_t last) {
  States states(problem.shape.n_tokens * problem.shape.group, problem.shape.head_dim);
  Scratch scratch;
  attend(problem.queries(), problem.slice(first, last), problem.rule,
         problem.visible_in(first, last).data(), states.view(), scratch);
  return states;
}

// Logits of a row over entries [first, last) with their biases.
std::vector<double> logits_of(const Problem& problem, std::size_t row, std::size_t first,
                              std::size_t last) {
  const Shape& s = problem.shape;
  const QueryView queries = problem.queries();
  const EntryView entries = problem.slice(first, last);
  const float* query =
      queries.data + row / s.group * queries.token_stride + row % s.group * s.head_dim;
  std::vector<double> out;
  for (std::size_t j = 0; j < last - first; ++j) {
    double product = 0;
    for (std::size_t c = 0; c < s.head_dim; ++c)
      product += static_cast<double>(query[c]) *
                 static_cast<double>(to_float(entries.keys[j * s.head_dim + c]));
    out.push_back(product * static_cast<double>(problem.rule.scale) +
                  (entries.bias == nullptr ? 0.0 : static_cast<double>(entries.bias[j])));
  }
  return out;
}

TEST(SharpnessGate, ScalesTheGatedMassInsideOfOneSoftmax) {
  const SharpnessGate gate{0.05f, 0.4f, 0.2f};
  const Problem problem(
      {.head_dim = 64, .group = 3, .n_tokens = 5, .n = 150, .bias = Bias::kFinite}, 3);
  const std::size_t n_main = 100;
  const std::size_t n_rows = 15;
  States rest = attend_to(problem, 0, n_main);
  States gated = attend_to(problem, n_main, 150);
  gate_states(gate, rest.view(), gated.view(), n_rows, 64);
  merge_states(rest.view(), gated.view(), n_rows, 64);
  const Result result = finish(rest, problem);
  const EntryView entries = problem.entries();
  int n_partly = 0;
  for (std::size_t r = 0; r < n_rows; ++r) {
    std::vector<double> main = logits_of(problem, r, 0, n_main);
    const std::vector<double> summary = logits_of(problem, r, n_main, 150);
    double sum = 0;
    double largest = 0;
    for (double& z : main) sum += z = std::exp(z);
    for (const double e : main) largest = std::max(largest, e / sum);
    const double s = std::clamp((largest - 0.05) / 0.35, 0.0, 1.0);
    const double factor = 1 - 0.8 * s;
    n_partly += s > 0 && s < 1 ? 1 : 0;
    std::vector<double> weights = main;
    for (const double z : summary) weights.push_back(factor * std::exp(z));
    double total = 0;
    for (const double w : weights) total += w;
    for (std::size_t c = 0; c < 64; ++c) {
      double expected = 0;
      for (std::size_t j = 0; j < weights.size(); ++j)
        expected += weights[j] / total * static_cast<double>(to_float(entries.values[j * 64 + c]));
      ASSERT_NEAR(result.output[r * 64 + c], expected, 2e-5) << "row " << r;
    }
  }
  EXPECT_GT(n_partly, 3) << "the gate must be at work on its slope";
}

TEST(SharpnessGate, IsNothingWhenOffAndEmptiesRowsAtZero) {
  const Problem problem({.head_dim = 32, .group = 2, .n_tokens = 2, .n = 80}, 4);
  States rest = attend_to(problem, 0, 40);
  const States gated = attend_to(problem, 40, 80);
  States copy = gated;
  gate_states({}, rest.view(), copy.view(), 4, 32);
  EXPECT_TRUE(same_bits(copy.max, gated.max) && same_bits(copy.sum, gated.sum) &&
              same_bits(copy.out, gated.out));
  gate_states({1e-6f, 1e-6f, 0}, rest.view(), copy.view(), 4, 32);
  const States before = rest;
  merge_states(rest.view(), copy.view(), 4, 32);
  EXPECT_TRUE(same_bits(rest.max, before.max) && same_bits(rest.sum, before.sum) &&
              same_bits(rest.out, before.out));
}

// Nothing exact is seen: sharpness is 0 and what is summarised is all there is.
TEST(SharpnessGate, IsOpenWhereNothingElseIsSeen) {
  const Problem problem({.head_dim = 32, .group = 2, .n_tokens = 2, .n = 80}, 5);
  States nothing(4, 32);
  const States gated = attend_to(problem, 0, 80);
  States copy = gated;
  gate_states({0.1f, 0.5f, 0}, nothing.view(), copy.view(), 4, 32);
  EXPECT_TRUE(same_bits(copy.max, gated.max));
  float sharpness = -1;
  row_sharpness(nothing.view(), 1, &sharpness);
  EXPECT_EQ(sharpness, 0.0f);
}

}  // namespace
}  // namespace precis::testing
