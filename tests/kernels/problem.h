// Random attention problems for the kernel tests, and the loop over instruction sets.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "kernels/attention_ref.h"
#include "kernels/simd_targets.h"

// After simd_targets.h.
#include "hwy/highway.h"

namespace precis::testing {

enum class Bias { kNone, kFinite, kMixed, kAllHidden };  // mixed: 3 of 10 are -inf
enum class Range {
  kAll,
  kCausal,
  kWindow,
  kGaps,
  kRandom
};  // gaps: every second token sees nothing
enum class Data {
  kNormal,
  kSteep,
  kExtreme
};  // steep: logits of +-400; extreme: 65504, subnormals

struct Shape {
  std::size_t head_dim = 64;
  std::size_t group = 1;
  std::size_t n_tokens = 1;
  std::size_t n = 64;
  Bias bias = Bias::kNone;
  Range range = Range::kAll;
  Data data = Data::kNormal;
  float softcap = 0.0f;

  std::string describe() const;
};

// Owns the arguments of a call. No array is aligned to more than its element.
class Problem {
 public:
  Problem(const Shape& shape, std::uint32_t seed);

  QueryView queries() const;
  EntryView entries() const;
  // Entries [first, last) as a list of their own, and what the tokens see of it.
  EntryView slice(std::size_t first, std::size_t last) const;
  std::vector<Visible> visible_in(std::size_t first, std::size_t last) const;

  // How far a logit may be off in f32 (see below), largest |v|, and the tolerance that follows
  // for an output element.
  double logit_error() const;
  double value_error() const;

  Shape shape;
  LogitRule rule;
  std::vector<float> query_data;
  std::vector<Half> keys;
  std::vector<Half> values;
  std::vector<float> bias;
  std::vector<Visible> visible;
  std::size_t token_stride = 0;
  std::size_t shift = 0;  // elements by which the views start after the allocations
};

// States of n_rows rows, reset, not aligned.
class States {
 public:
  States(std::size_t n_rows, std::size_t head_dim);
  StateView view();

  std::vector<float> max, sum, out;
};

struct Result {
  std::vector<float> output;       // [n_rows, head_dim]
  std::vector<float> log_sum_exp;  // [n_rows]
};

Result finish(States& states, const Problem& problem);

// attend() over all entries, then finish_states().
Result run_attend(const Problem& problem);

// The oracle, in double.
struct Expected {
  std::vector<double> output;
  std::vector<double> log_sum_exp;
};
Expected run_reference(const Problem& problem);

// Fails the test if result is not within the tolerance of the problem.
void expect_close(const Problem& problem, const Result& result, const Expected& expected);

bool same_bits(const std::vector<float>& a, const std::vector<float>& b);

// All instruction sets that were compiled and that this machine can run.
std::vector<std::int64_t> instruction_sets();

// Makes the kernels use one instruction set while it lives.
class UseInstructionSet {
 public:
  explicit UseInstructionSet(std::int64_t target);
  ~UseInstructionSet();
  UseInstructionSet(const UseInstructionSet&) = delete;
  UseInstructionSet& operator=(const UseInstructionSet&) = delete;
};

namespace detail {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr double kUlp = 0x1p-24;  // rounding error of f32, relative

inline float draw(Data data, std::mt19937& random) {
  std::normal_distribution<float> normal;
  if (data != Data::kExtreme) return normal(random);
  switch (random() % 6) {
    case 0:
      return 65504.0f;
    case 1:
      return -65504.0f;
    case 2:
      return 0x1p-24f * static_cast<float>(random() % 1024);
    case 3:
      return -0x1p-24f * static_cast<float>(random() % 1024);
    case 4:
      return 0.0f;
    default:
      return normal(random);
  }
}

inline Visible draw_range(const Shape& shape, std::size_t token, std::mt19937& random) {
  const auto n = static_cast<std::uint32_t>(shape.n);
  const auto back = static_cast<std::uint32_t>(shape.n_tokens - 1 - token);
  const std::uint32_t end = n > back ? n - back : 0;
  switch (shape.range) {
    case Range::kAll:
      return {0, n};
    case Range::kCausal:
      return {0, end};
    case Range::kWindow:
      return {end > 17 ? end - 17 : 0, end};
    case Range::kGaps:
      return token % 2 == 0 ? Visible{n / 2, n / 2} : Visible{n / 3, n};
    case Range::kRandom:
      break;
  }
  const auto a = static_cast<std::uint32_t>(random() % (n + 1));
  const auto b = static_cast<std::uint32_t>(random() % (n + 1));
  return {std::min(a, b), std::max(a, b)};
}

inline double largest_norm(const Half* rows, std::size_t n, std::size_t width) {
  double largest = 0;
  for (std::size_t j = 0; j < n; ++j) {
    double sum = 0;
    for (std::size_t c = 0; c < width; ++c) {
      const double x = static_cast<double>(to_float(rows[j * width + c]));
      sum += x * x;
    }
    largest = std::max(largest, std::sqrt(sum));
  }
  return largest;
}

}  // namespace detail

inline std::string Shape::describe() const {
  return "head_dim " + std::to_string(head_dim) + " group " + std::to_string(group) + " tokens " +
         std::to_string(n_tokens) + " n " + std::to_string(n) + " bias " +
         std::to_string(static_cast<int>(bias)) + " range " +
         std::to_string(static_cast<int>(range)) + " data " +
         std::to_string(static_cast<int>(data)) + " softcap " + std::to_string(softcap);
}

inline Problem::Problem(const Shape& s, std::uint32_t seed) : shape(s) {
  std::mt19937 random(seed);
  shift = 1 + seed % 3;
  token_stride = shape.group * shape.head_dim + seed % 2 * 24;
  rule.softcap = shape.softcap;
  rule.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  // Norms of about sqrt(d) give logits of order 1; extreme keys have norms of about 40000 sqrt(d).
  const float size = shape.data == Data::kSteep     ? 150.0f
                     : shape.data == Data::kExtreme ? 2e-3f
                                                    : 1.5f;
  query_data.resize(shift + shape.n_tokens * token_stride);
  for (float& x : query_data) x = size * detail::draw(Data::kNormal, random);
  keys.resize(shift + shape.n * shape.head_dim);
  values.resize(keys.size());
  for (Half& x : keys) x = to_half(detail::draw(shape.data, random));
  for (Half& x : values) x = to_half(detail::draw(shape.data, random));
  if (shape.bias != Bias::kNone) bias.resize(shift + shape.n);
  for (float& x : bias) {
    const bool hidden =
        shape.bias == Bias::kAllHidden || (shape.bias == Bias::kMixed && random() % 10 < 3);
    x = hidden ? -detail::kInfinity : 2.0f * detail::draw(Data::kNormal, random);
  }
  for (std::size_t t = 0; t < shape.n_tokens; ++t)
    visible.push_back(detail::draw_range(shape, t, random));
}

inline QueryView Problem::queries() const {
  return {query_data.data() + shift, shape.n_tokens, shape.group, shape.head_dim, token_stride};
}

inline EntryView Problem::entries() const { return slice(0, shape.n); }

inline EntryView Problem::slice(std::size_t first, std::size_t last) const {
  const std::size_t skip = shift + first * shape.head_dim;
  return {keys.data() + skip, values.data() + skip,
          bias.empty() ? nullptr : bias.data() + shift + first, last - first};
}

inline std::vector<Visible> Problem::visible_in(std::size_t first, std::size_t last) const {
  std::vector<Visible> part;
  const auto low = static_cast<std::uint32_t>(first);
  const auto high = static_cast<std::uint32_t>(last);
  for (const Visible& v : visible)
    part.push_back({std::clamp(v.first, low, high) - low, std::clamp(v.last, low, high) - low});
  return part;
}

// A sum of m products in f32 is off by at most m ulp times the sum of |products|. Rounding errors
// are nearly independent, so 4 sqrt(m) is a bound in practice, and Cauchy-Schwarz bounds the
// products. Scaling, bias and the subtraction of the maximum add a few ulp of the largest logit.
// The soft-cap adds 3e-7 (tanh by division of exponentials) times the cap.
inline double Problem::logit_error() const {
  double query_norm = 0;
  for (std::size_t t = 0; t < shape.n_tokens; ++t) {
    for (std::size_t j = 0; j < shape.group; ++j) {
      const float* row = queries().data + t * token_stride + j * shape.head_dim;
      double sum = 0;
      for (std::size_t c = 0; c < shape.head_dim; ++c)
        sum += static_cast<double>(row[c]) * static_cast<double>(row[c]);
      query_norm = std::max(query_norm, std::sqrt(sum));
    }
  }
  const double key_norm = detail::largest_norm(entries().keys, shape.n, shape.head_dim);
  const double product = query_norm * key_norm * static_cast<double>(rule.scale);
  const double m = static_cast<double>(shape.head_dim);
  return 4 * std::sqrt(m) * detail::kUlp * product + 4 * detail::kUlp * (product + 10) +
         3e-7 * static_cast<double>(rule.softcap);
}

// The relative error of a probability is that of its numerator and of the sum below it, twice the
// logit error; sums over n entries add 4 sqrt(n) ulp each, exp and division a few more.
inline double Problem::value_error() const {
  double largest = 0;
  for (Half v : values) largest = std::max(largest, static_cast<double>(std::fabs(to_float(v))));
  const double sums = 2 * (4 * std::sqrt(static_cast<double>(shape.n)) + 8) * detail::kUlp;
  return largest * (std::expm1(2 * logit_error()) + sums);
}

inline States::States(std::size_t n_rows, std::size_t head_dim)
    : max(n_rows + 1), sum(n_rows + 1), out(n_rows * head_dim + 1) {
  reset_states(view(), n_rows, head_dim);
}

inline StateView States::view() { return {max.data() + 1, sum.data() + 1, out.data() + 1}; }

inline Result finish(States& states, const Problem& problem) {
  const Shape& s = problem.shape;
  const std::size_t rows = s.n_tokens * s.group;
  Result result{std::vector<float>(rows * s.head_dim), std::vector<float>(rows)};
  finish_states(states.view(), s.n_tokens, s.group, s.head_dim, s.group * s.head_dim,
                result.output.data(), result.log_sum_exp.data());
  return result;
}

inline Result run_attend(const Problem& problem) {
  States states(problem.shape.n_tokens * problem.shape.group, problem.shape.head_dim);
  Scratch scratch;
  attend(problem.queries(), problem.entries(), problem.rule, problem.visible.data(), states.view(),
         scratch);
  return finish(states, problem);
}

inline Expected run_reference(const Problem& problem) {
  const std::size_t rows = problem.shape.n_tokens * problem.shape.group;
  Expected expected{std::vector<double>(rows * problem.shape.head_dim), std::vector<double>(rows)};
  const EntryView entries = problem.entries();
  const Visible* visible = problem.visible.data();
  reference::attention(problem.queries(), &entries, 1, problem.rule, &visible,
                       expected.output.data(), expected.log_sum_exp.data());
  return expected;
}

inline void expect_close(const Problem& problem, const Result& result, const Expected& expected) {
  const std::size_t d = problem.shape.head_dim;
  const double tolerance = problem.value_error();
  for (std::size_t i = 0; i < result.output.size(); ++i) {
    const double got = static_cast<double>(result.output[i]);
    // Not EXPECT_NEAR alone: it would accept a NaN in neither and report 10000 lines.
    if (!(std::fabs(got - expected.output[i]) <= tolerance)) {
      FAIL() << "row " << i / d << " channel " << i % d << ": " << got << " instead of "
             << expected.output[i] << ", tolerance " << tolerance;
    }
  }
  const double sums = (4 * std::sqrt(static_cast<double>(problem.shape.n)) + 8) * detail::kUlp;
  for (std::size_t r = 0; r < result.log_sum_exp.size(); ++r) {
    const double got = static_cast<double>(result.log_sum_exp[r]);
    const double want = expected.log_sum_exp[r];
    if (std::isinf(want)) {
      ASSERT_EQ(got, want) << "row " << r;
      for (std::size_t c = 0; c < d; ++c) ASSERT_EQ(result.output[r * d + c], 0.0f) << "row " << r;
    } else {
      ASSERT_NEAR(got, want, problem.logit_error() + sums + 2 * detail::kUlp * std::fabs(want))
          << r;
    }
  }
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

inline std::vector<std::int64_t> instruction_sets() { return hwy::SupportedAndGeneratedTargets(); }

inline UseInstructionSet::UseInstructionSet(std::int64_t target) {
  hwy::SetSupportedTargetsForTest(target);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  EXPECT_STREQ(instruction_set_name(), hwy::TargetName(target));
}

inline UseInstructionSet::~UseInstructionSet() {
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace precis::testing
