// attend() against the oracle on a grid of problems, for every instruction set of this machine.
#include "kernels/attention.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "kernels/problem.h"

namespace precis::testing {
namespace {

constexpr std::size_t kHeadDims[] = {64, 80, 96, 128, 256, 8, 72, 512};
constexpr std::size_t kGroups[] = {1, 2, 3, 4, 5, 6, 7, 8};
constexpr std::size_t kLengths[] = {0, 1, 3, 63, 64, 65, 127, 4097};
constexpr std::size_t kTokens[] = {1, 2, 33};
constexpr float kSoftcaps[] = {0.0f, 30.0f};
constexpr std::size_t kAxes = 8;
constexpr std::size_t kAxisSizes[kAxes] = {8, 8, 8, 3, 4, 5, 3, 2};

using Choice = std::array<std::size_t, kAxes>;

Shape shape_of(const Choice& c) {
  return {.head_dim = kHeadDims[c[0]],
          .group = kGroups[c[1]],
          .n_tokens = kTokens[c[3]],
          .n = kLengths[c[2]],
          .bias = static_cast<Bias>(c[4]),
          .range = static_cast<Range>(c[5]),
          .data = static_cast<Data>(c[6]),
          .softcap = kSoftcaps[c[7]]};
}

// Bounds the time of the oracle and of the slowest instruction set in a checked build. Excludes
// some combinations of 4097 entries with many rows or channels; "long and wide" below has one of
// them.
bool affordable(const Shape& s) { return s.head_dim * s.group * s.n_tokens * s.n <= 2200000; }

using Pair = std::array<std::size_t, 4>;  // axis, value, axis, value

std::vector<Pair> pairs_of(const Choice& c) {
  std::vector<Pair> pairs;
  for (std::size_t a = 0; a < kAxes; ++a)
    for (std::size_t b = a + 1; b < kAxes; ++b) pairs.push_back({a, c[a], b, c[b]});
  return pairs;
}

// A choice that has the pair and is otherwise random, or the best of a few by pairs still missing.
Choice complete(const Pair& pair, const std::set<Pair>& missing, std::mt19937& random) {
  Choice best{};
  std::size_t best_gain = 0;
  for (int attempt = 0; attempt < 60; ++attempt) {
    Choice c{};
    for (std::size_t a = 0; a < kAxes; ++a) c[a] = random() % kAxisSizes[a];
    c[pair[0]] = pair[1];
    c[pair[2]] = pair[3];
    if (!affordable(shape_of(c))) continue;
    std::size_t gain = 0;
    for (const Pair& p : pairs_of(c)) gain += missing.count(p);
    if (gain > best_gain) {
      best_gain = gain;
      best = c;
    }
  }
  return best;
}

// Every affordable pair of values of two axes occurs in some shape (about 90 instead of 184320).
std::vector<Shape> all_pairs() {
  std::set<Pair> missing;
  for (std::size_t a = 0; a < kAxes; ++a)
    for (std::size_t b = a + 1; b < kAxes; ++b)
      for (std::size_t i = 0; i < kAxisSizes[a]; ++i)
        for (std::size_t j = 0; j < kAxisSizes[b]; ++j) missing.insert({a, i, b, j});
  std::mt19937 random(1);
  std::vector<Shape> shapes;
  while (!missing.empty()) {
    const Pair pair = *missing.begin();
    const Choice c = complete(pair, missing, random);
    for (const Pair& p : pairs_of(c)) missing.erase(p);
    missing.erase(pair);  // not affordable, if it is still there
    shapes.push_back(shape_of(c));
  }
  return shapes;
}

void check(const Shape& shape, std::uint32_t seed) {
  SCOPED_TRACE(shape.describe());
  const Problem problem(shape, seed);
  const Expected expected = run_reference(problem);
  for (std::int64_t target : instruction_sets()) {
    const UseInstructionSet use(target);
    SCOPED_TRACE(instruction_set_name());
    expect_close(problem, run_attend(problem), expected);
  }
}

class AttendGrid : public ::testing::TestWithParam<std::size_t> {};

TEST_P(AttendGrid, AgreesWithOracle) {
  const std::vector<Shape> shapes = all_pairs();
  EXPECT_GE(shapes.size(), 64u);
  for (std::size_t i = GetParam(); i < shapes.size(); i += 4)
    check(shapes[i], static_cast<std::uint32_t>(i + 1));
}

INSTANTIATE_TEST_SUITE_P(Quarter, AttendGrid, ::testing::Range<std::size_t>(0, 4));

TEST(Attend, AgreesWithOracleOnTilesOfEveryModelShape) {
  std::uint32_t seed = 100;
  for (const auto& [d, g] :
       {std::pair<std::size_t, std::size_t>{64, 3}, {64, 7}, {256, 4}, {96, 1}})
    for (Range range : {Range::kCausal, Range::kWindow})
      check({.head_dim = d, .group = g, .n_tokens = 40, .n = 150, .range = range}, ++seed);
}

TEST(Attend, AgreesWithOracleOnMoreRowsThanATile) {
  check({.head_dim = 8, .group = 5, .n_tokens = 70, .n = 200, .range = Range::kCausal}, 7);
  check({.head_dim = 8, .group = 130, .n_tokens = 2, .n = 70, .range = Range::kRandom}, 8);
}

TEST(Attend, AgreesWithOracleLongAndWide) {
  check({.head_dim = 256, .group = 4, .n = 4097, .bias = Bias::kMixed}, 9);
}

TEST(Attend, InstructionSetHasAName) { EXPECT_STRNE(instruction_set_name(), "?"); }

TEST(Attend, RowsThatSeeNothingGiveZeroAndMinusInfinity) {
  for (std::int64_t target : instruction_sets()) {
    const UseInstructionSet use(target);
    for (std::size_t tokens : {1u, 5u}) {
      Problem problem({.group = 3, .n_tokens = tokens, .n = 70, .bias = Bias::kAllHidden}, 3);
      const Result result = run_attend(problem);
      for (float x : result.output) ASSERT_EQ(x, 0.0f);
      for (float x : result.log_sum_exp) ASSERT_EQ(x, -std::numeric_limits<float>::infinity());
    }
  }
}

TEST(Attend, NoTokensOrNoEntriesChangesNothing) {
  Problem problem({.group = 2, .n = 10}, 4);
  Scratch scratch;
  States states(2, 64);
  attend(problem.queries(), problem.entries(), problem.rule, problem.visible.data(), states.view(),
         scratch);
  const States before = states;
  QueryView none = problem.queries();
  none.n_tokens = 0;
  attend(none, problem.entries(), problem.rule, nullptr, states.view(), scratch);
  const Visible nothing{0, 0};
  attend(problem.queries(), EntryView{}, problem.rule, &nothing, states.view(), scratch);
  EXPECT_TRUE(same_bits(before.out, states.out));
  EXPECT_TRUE(same_bits(before.max, states.max));
  EXPECT_TRUE(same_bits(before.sum, states.sum));
}

}  // namespace
}  // namespace precis::testing
