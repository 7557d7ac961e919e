// Properties of partial states: slices merge to the whole, results depend on the arguments only.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <vector>

#include "kernels/attention.h"
#include "kernels/problem.h"

namespace precis::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// One test per instruction set.
class PartialStates : public ::testing::TestWithParam<std::int64_t> {
 protected:
  UseInstructionSet use_{GetParam()};
};

States attend_slice(const Problem& problem, std::size_t first, std::size_t last) {
  const Shape& s = problem.shape;
  States states(s.n_tokens * s.group, s.head_dim);
  Scratch scratch;
  attend(problem.queries(), problem.slice(first, last), problem.rule,
         problem.visible_in(first, last).data(), states.view(), scratch);
  return states;
}

void merge(States& into, States& from, const Problem& problem) {
  merge_states(into.view(), from.view(), problem.shape.n_tokens * problem.shape.group,
               problem.shape.head_dim);
}

bool same_states(const States& a, const States& b) {
  return same_bits(a.max, b.max) && same_bits(a.sum, b.sum) && same_bits(a.out, b.out);
}

std::vector<Problem> problems() {
  std::vector<Problem> list;
  list.emplace_back(Shape{.group = 3, .n = 300}, 1);
  list.emplace_back(Shape{.head_dim = 80, .group = 7, .n = 257, .bias = Bias::kMixed}, 2);
  list.emplace_back(Shape{.group = 5, .n_tokens = 9, .n = 200, .range = Range::kCausal}, 3);
  list.emplace_back(
      Shape{.group = 2, .n_tokens = 9, .n = 200, .range = Range::kRandom, .data = Data::kSteep}, 4);
  return list;
}

TEST_P(PartialStates, SlicesMergeToTheWholeInAnyOrder) {
  std::mt19937 random(5);
  for (const Problem& problem : problems()) {
    SCOPED_TRACE(problem.shape.describe());
    const Expected expected = run_reference(problem);
    for (int trial = 0; trial < 4; ++trial) {
      std::vector<std::size_t> cuts = {0, problem.shape.n};
      for (int i = 0; i < 3; ++i) cuts.push_back(random() % (problem.shape.n + 1));
      std::sort(cuts.begin(), cuts.end());
      std::vector<States> parts;
      for (std::size_t i = 0; i + 1 < cuts.size(); ++i)
        parts.push_back(attend_slice(problem, cuts[i], cuts[i + 1]));
      std::shuffle(parts.begin(), parts.end(), random);
      for (std::size_t i = 1; i < parts.size(); ++i) merge(parts[0], parts[i], problem);
      expect_close(problem, finish(parts[0], problem), expected);
    }
  }
}

TEST_P(PartialStates, AttendAddsToWhatAStateHolds) {
  for (const Problem& problem : problems()) {
    SCOPED_TRACE(problem.shape.describe());
    States states = attend_slice(problem, 0, 70);
    Scratch scratch;
    attend(problem.queries(), problem.slice(70, problem.shape.n), problem.rule,
           problem.visible_in(70, problem.shape.n).data(), states.view(), scratch);
    expect_close(problem, finish(states, problem), run_reference(problem));
  }
}

TEST_P(PartialStates, MergingAnEmptyStateChangesNoBit) {
  for (const Problem& problem : problems()) {
    const std::size_t rows = problem.shape.n_tokens * problem.shape.group;
    const States whole = attend_slice(problem, 0, problem.shape.n);
    States empty(rows, problem.shape.head_dim);
    States into = whole;
    merge(into, empty, problem);
    EXPECT_TRUE(same_states(into, whole));
    States from = whole;
    merge(empty, from, problem);
    EXPECT_TRUE(same_states(empty, whole));
    States one(rows, problem.shape.head_dim);
    States other(rows, problem.shape.head_dim);
    merge(one, other, problem);
    EXPECT_TRUE(same_states(one, other));
    for (float x : finish(one, problem).output) ASSERT_EQ(x, 0.0f);
  }
}

TEST_P(PartialStates, RepeatedEntryEqualsBiasOfLogTwo) {
  Problem twice(Shape{.group = 4, .n_tokens = 3, .n = 66, .bias = Bias::kFinite}, 6);
  const std::size_t d = twice.shape.head_dim;
  const std::size_t from = twice.shift + 11 * d;
  const std::size_t to = twice.shift + 65 * d;
  std::copy_n(twice.keys.begin() + static_cast<std::ptrdiff_t>(from), d,
              twice.keys.begin() + static_cast<std::ptrdiff_t>(to));
  std::copy_n(twice.values.begin() + static_cast<std::ptrdiff_t>(from), d,
              twice.values.begin() + static_cast<std::ptrdiff_t>(to));
  twice.bias[twice.shift + 65] = twice.bias[twice.shift + 11];
  Problem biased = twice;
  biased.bias[biased.shift + 11] += std::log(2.0f);
  biased.bias[biased.shift + 65] = -kInfinity;
  expect_close(twice, run_attend(biased), run_reference(twice));
}

TEST_P(PartialStates, CallingTwiceGivesIdenticalBits) {
  for (const Problem& problem : problems()) {
    const States first = attend_slice(problem, 0, problem.shape.n);
    Scratch scratch;  // used before by a call of another shape
    const Problem other(Shape{.head_dim = 256, .group = 3, .n_tokens = 20, .n = 90}, 8);
    States ignored(60, 256);
    attend(other.queries(), other.entries(), other.rule, other.visible.data(), ignored.view(),
           scratch);
    States second(problem.shape.n_tokens * problem.shape.group, problem.shape.head_dim);
    attend(problem.queries(), problem.entries(), problem.rule, problem.visible.data(),
           second.view(), scratch);
    EXPECT_TRUE(same_states(first, second)) << problem.shape.describe();
  }
}

TEST_P(PartialStates, AlignmentDoesNotMatter) {
  for (Problem& problem : problems()) {
    const States first = attend_slice(problem, 0, problem.shape.n);
    const std::size_t old = problem.shift;
    for (std::size_t more = 1; more < 8; ++more) {  // moves every array by one element
      problem.query_data.insert(problem.query_data.begin(), 7.0f);
      problem.keys.insert(problem.keys.begin(), Half{});
      problem.values.insert(problem.values.begin(), Half{});
      if (!problem.bias.empty()) problem.bias.insert(problem.bias.begin(), 7.0f);
      problem.shift = old + more;
      EXPECT_TRUE(same_states(first, attend_slice(problem, 0, problem.shape.n)));
    }
  }
}

// Decode, extension and prefill share their sums: a row has the same bits in any company.
TEST_P(PartialStates, RowsDoNotDependOnTheirNeighbours) {
  for (Range range : {Range::kCausal, Range::kWindow, Range::kRandom, Range::kGaps}) {
    const Problem problem(Shape{.head_dim = 72,
                                .group = 7,
                                .n_tokens = 21,
                                .n = 150,
                                .bias = Bias::kFinite,
                                .range = range,
                                .softcap = 20.0f},
                          9);
    States together = attend_slice(problem, 0, problem.shape.n);
    const StateView all = together.view();
    for (std::size_t r = 0; r < problem.shape.n_tokens * problem.shape.group; ++r) {
      QueryView alone = problem.queries();
      alone.data += r / alone.group * alone.token_stride + r % alone.group * alone.head_dim;
      alone.n_tokens = 1;
      const Visible* visible = &problem.visible[r / alone.group];
      alone.group = 1;
      States one(1, alone.head_dim);
      Scratch scratch;
      attend(alone, problem.entries(), problem.rule, visible, one.view(), scratch);
      ASSERT_EQ(one.view().max[0], all.max[r]);
      ASSERT_EQ(one.view().sum[0], all.sum[r]);
      for (std::size_t c = 0; c < alone.head_dim; ++c)
        ASSERT_EQ(one.view().out[c], all.out[r * alone.head_dim + c]) << r << " " << c;
    }
  }
}

TEST_P(PartialStates, HiddenEntriesEqualAbsentOnes) {
  Problem problem(Shape{.group = 3, .n_tokens = 4, .n = 128, .bias = Bias::kFinite}, 10);
  for (std::size_t j = 50; j < 128; ++j) problem.bias[problem.shift + j] = -kInfinity;
  const States hidden = attend_slice(problem, 0, 128);
  for (Visible& v : problem.visible) v = {0, 50};
  EXPECT_TRUE(same_states(hidden, attend_slice(problem, 0, 50)));
}

TEST_P(PartialStates, FinishWritesRowsAtTheStride) {
  const Problem problem(Shape{.group = 2, .n_tokens = 3, .n = 20}, 11);
  States states = attend_slice(problem, 0, 20);
  const Result packed = finish(states, problem);
  const std::size_t width = 2 * 64;
  const std::size_t stride = width + 10;
  std::vector<float> wide(3 * stride, 5.0f);
  finish_states(states.view(), 3, 2, 64, stride, wide.data(), nullptr);
  for (std::size_t t = 0; t < 3; ++t) {
    for (std::size_t c = 0; c < width; ++c)
      ASSERT_EQ(wide[t * stride + c], packed.output[t * width + c]);
    for (std::size_t c = width; c < stride; ++c) ASSERT_EQ(wide[t * stride + c], 5.0f);
  }
}

TEST(Scratch, IsAlignedAndGrows) {
  Scratch scratch;
  for (std::size_t n : {1u, 100u, 7u, 100000u}) {
    float* floats = scratch.floats(n);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(floats) % 64, 0u);
    std::fill(floats, floats + n, 1.0f);
  }
}

INSTANTIATE_TEST_SUITE_P(Target, PartialStates, ::testing::ValuesIn(instruction_sets()),
                         [](const auto& info) { return hwy::TargetName(info.param); });

}  // namespace
}  // namespace precis::testing
