// add_attention_mass and log_block_attention against the oracle and against each other.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/attention.h"
#include "kernels/attention_ref.h"
#include "kernels/kept_logits.h"
#include "kernels/problem.h"

namespace precis::testing {
namespace {

class Scores : public ::testing::TestWithParam<std::int64_t> {
 protected:
  UseInstructionSet use_{GetParam()};
};

std::vector<float> mass_of(const Problem& problem, float start) {
  std::vector<float> mass(problem.shape.n, start);
  const Expected rows = run_reference(problem);
  const std::vector<float> sums(rows.log_sum_exp.begin(), rows.log_sum_exp.end());
  Scratch scratch;
  add_attention_mass(problem.queries(), problem.entries(), problem.rule, problem.visible.data(),
                     sums.data(), mass.data(), scratch);
  return mass;
}

const Shape kShapes[] = {
    {.group = 3, .n_tokens = 32, .n = 200, .range = Range::kCausal},
    {.head_dim = 80, .group = 1, .n = 3},
    {.head_dim = 96, .group = 7, .n_tokens = 2, .n = 65, .bias = Bias::kMixed},
    {.group = 4, .n_tokens = 5, .n = 130, .range = Range::kGaps, .softcap = 25.0f},
    {.head_dim = 256, .group = 2, .n_tokens = 3, .n = 127, .range = Range::kWindow},
    {.group = 2, .n_tokens = 2, .n = 64, .bias = Bias::kAllHidden},
    {.group = 5, .n_tokens = 60, .n = 70, .range = Range::kRandom, .data = Data::kSteep},
    {.group = 1, .n_tokens = 4, .n = 0},
};

TEST_P(Scores, MassAgreesWithOracle) {
  std::uint32_t seed = 1;
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(shape.describe());
    const Problem problem(shape, ++seed);
    std::vector<double> expected(shape.n);
    reference::attention_mass(problem.queries(), problem.entries(), problem.rule,
                              problem.visible.data(), expected.data());
    const std::vector<float> mass = mass_of(problem, 0.0f);
    // Relative error of a probability as in Problem::value_error; rows add up to at most n_rows.
    const double rows = static_cast<double>(shape.n_tokens * shape.group);
    const double relative =
        std::expm1(2 * problem.logit_error()) +
        0x1p-24 * (8 * std::sqrt(static_cast<double>(shape.n)) + 16 + 4 * std::sqrt(rows));
    for (std::size_t j = 0; j < shape.n; ++j)
      ASSERT_NEAR(static_cast<double>(mass[j]), expected[j], relative * expected[j] + 1e-30) << j;
  }
}

TEST_P(Scores, PeaksAgreeWithOracle) {
  std::uint32_t seed = 70;
  for (Shape shape : kShapes) {
    if (shape.bias == Bias::kAllHidden) continue;
    shape.range = Range::kAll;
    SCOPED_TRACE(shape.describe());
    const Problem problem(shape, ++seed);
    const Expected rows = run_reference(problem);
    // As if the rows saw something beside these entries.
    std::vector<float> sums;
    for (const double lse : rows.log_sum_exp)
      sums.push_back(static_cast<float>(std::isfinite(lse) ? lse + 0.5 : 0.0));
    std::vector<float> peaks(shape.n, -3.0f);
    Scratch scratch;
    raise_log_peaks(problem.queries(), problem.entries(), problem.rule, sums.data(), peaks.data(),
                    scratch);
    // One row and one entry at a time: their mass under a log-sum-exp of 0 is exp(logit).
    const std::size_t d = problem.queries().head_dim;
    for (std::size_t j = 0; j < shape.n; ++j) {
      double expected = -3.0;
      for (std::size_t r = 0; r < sums.size(); ++r) {
        const QueryView all = problem.queries();
        const QueryView one{all.data + r / all.group * all.token_stride + r % all.group * d, 1, 1,
                            d, d};
        EntryView entry = problem.entries();
        entry.keys += j * d;
        entry.values += j * d;
        if (entry.bias != nullptr) entry.bias += j;
        entry.n = 1;
        const Visible visible{0, 1};
        double lse = 0;
        std::vector<double> out(d);
        const Visible* ranges = &visible;
        reference::attention(one, &entry, 1, problem.rule, &ranges, out.data(), &lse);
        expected = std::max(expected, lse - static_cast<double>(sums[r]));
      }
      ASSERT_NEAR(static_cast<double>(peaks[j]), expected,
                  4 * problem.logit_error() + 1e-6 * std::abs(expected))
          << j;
    }
  }
}

// Rows of attention from logits that attend_keeping_logits() kept, for every group, with biases and
// ranges; the state is attend()'s own.
TEST_P(Scores, KeptLogitsGiveTheRowsOfTheOracle) {
  std::uint32_t seed = 40;
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(shape.describe());
    const Problem problem(shape, ++seed);
    const QueryView queries = problem.queries();
    const std::size_t stride = shape.n + 5;
    const std::size_t n_rows = queries.n_rows();
    constexpr float kUntouched = 123.0f;
    std::vector<float> rows(n_rows * stride, kUntouched);
    States kept(n_rows, shape.head_dim);
    States plain(n_rows, shape.head_dim);
    Scratch scratch;
    attend_keeping_logits(queries, problem.entries(), problem.rule, problem.visible.data(),
                          kept.view(), rows.data(), stride, scratch);
    attend(queries, problem.entries(), problem.rule, problem.visible.data(), plain.view(), scratch);
    ASSERT_TRUE(same_bits(kept.max, plain.max) && same_bits(kept.sum, plain.sum) &&
                same_bits(kept.out, plain.out));
    const Result result = finish(plain, problem);
    const std::size_t d = queries.head_dim;
    const double relative = std::expm1(2 * problem.logit_error()) + 1e-6;
    for (std::size_t r = 0; r < n_rows; ++r) {
      const Visible seen = problem.visible[r / queries.group];
      float* row = rows.data() + r * stride;
      for (std::size_t j = shape.n; j < stride; ++j) ASSERT_EQ(row[j], kUntouched);
      if (seen.first >= seen.last) continue;
      // A plain double loop over what the row sees.
      const float* q =
          queries.data + r / queries.group * queries.token_stride + r % queries.group * d;
      std::vector<double> logits(shape.n, -std::numeric_limits<double>::infinity());
      double sum = 0;
      double largest = -std::numeric_limits<double>::infinity();
      for (std::size_t j = seen.first; j < seen.last; ++j) {
        double z = 0;
        for (std::size_t c = 0; c < d; ++c)
          z += static_cast<double>(q[c]) *
               static_cast<double>(to_float(problem.entries().keys[j * d + c]));
        z *= static_cast<double>(problem.rule.scale);
        const auto cap = static_cast<double>(problem.rule.softcap);
        if (cap != 0) z = cap * std::tanh(z / cap);
        if (problem.entries().bias != nullptr) z += static_cast<double>(problem.entries().bias[j]);
        logits[j] = z;
        largest = std::max(largest, z);
      }
      if (std::isinf(largest)) continue;
      for (const double z : logits) sum += std::exp(z - largest);
      logits_to_attention(row + seen.first, seen.last - seen.first, result.log_sum_exp[r]);
      for (std::size_t j = seen.first; j < seen.last; ++j) {
        const double expected = std::exp(logits[j] - largest) / sum;
        ASSERT_NEAR(static_cast<double>(row[j]), expected, relative * expected + 1e-30)
            << "row " << r << " entry " << j;
      }
    }
  }
}

TEST_P(Scores, MassSumsToTheRowsThatSeeSomething) {
  std::uint32_t seed = 1;
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(shape.describe());
    const Problem problem(shape, ++seed);
    const Expected rows = run_reference(problem);
    double seeing = 0;
    for (double lse : rows.log_sum_exp) seeing += std::isinf(lse) ? 0 : 1;
    const std::vector<float> mass = mass_of(problem, 0.0f);
    const double total = std::accumulate(mass.begin(), mass.end(), 0.0);
    EXPECT_NEAR(total, seeing, 1e-5 * seeing);
  }
}

TEST_P(Scores, MassIsAddedAndRepeatable) {
  const Problem problem(kShapes[0], 3);
  const std::vector<float> once = mass_of(problem, 0.0f);
  EXPECT_TRUE(same_bits(once, mass_of(problem, 0.0f)));
  const std::vector<float> more = mass_of(problem, 1.0f);
  for (std::size_t j = 0; j < once.size(); ++j) ASSERT_NEAR(more[j], once[j] + 1.0f, 1e-4f);
}

// Tokens [first, first + n_tokens) of a block in one call, against a double-precision loop.
std::vector<float> block_attention_of(const Problem& problem, const std::vector<float>& sums,
                                      std::size_t first, std::size_t stride) {
  const QueryView queries = problem.queries();
  std::vector<float> out(queries.n_tokens * stride + 1, 9.0f);
  Scratch scratch;
  log_block_attention(queries, problem.entries().keys, first, problem.rule, sums.data(), stride,
                      out.data(), scratch);
  EXPECT_EQ(out.back(), 9.0f) << "written past the end";
  out.pop_back();
  return out;
}

TEST_P(Scores, BlockAttentionAgreesWithScalarLoop) {
  std::uint32_t seed = 1;
  for (std::size_t d : {8u, 64u, 80u})
    for (std::size_t group : {1u, 3u, 8u, 20u})
      for (std::size_t first : {0u, 31u, 63u, 90u})
        for (std::size_t n : {1u, 2u, 9u}) {
          const float cap = (d + group + first) % 2 == 0 ? 0.0f : 30.0f;
          const Problem problem(
              {.head_dim = d, .group = group, .n_tokens = n, .n = first + n, .softcap = cap},
              ++seed);
          const QueryView queries = problem.queries();
          std::vector<float> sums(n * group);
          for (std::size_t r = 0; r < sums.size(); ++r)
            sums[r] = static_cast<float>(r % 5) * 40.0f - 80.0f;  // no probability underflows
          const std::size_t stride = first + n + (n == 2 ? 0 : 70);
          const std::vector<float> got = block_attention_of(problem, sums, first, stride);
          for (std::size_t t = 0; t < n; ++t)
            for (std::size_t i = 0; i < stride; ++i) {
              const float value = got[t * stride + i];
              if (i > first + t) {
                ASSERT_EQ(value, -std::numeric_limits<float>::infinity()) << t << " " << i;
                continue;
              }
              double largest = -INFINITY;
              std::vector<double> logs(group);
              for (std::size_t j = 0; j < group; ++j) {
                const float* q = queries.data + t * queries.token_stride + j * d;
                double z = 0;
                for (std::size_t c = 0; c < d; ++c)
                  z += static_cast<double>(q[c]) *
                       static_cast<double>(to_float(problem.entries().keys[i * d + c]));
                z *= static_cast<double>(problem.rule.scale);
                if (cap != 0.0f) z = 30.0 * std::tanh(z / 30.0);
                logs[j] = z - static_cast<double>(sums[t * group + j]);
                largest = std::max(largest, logs[j]);
              }
              double sum = 0;
              for (double x : logs) sum += std::exp(x - largest);
              ASSERT_NEAR(static_cast<double>(value), largest + std::log(sum),
                          problem.logit_error() + 0x1p-22 * (std::abs(largest) + 80))
                  << "d " << d << " group " << group << " first " << first << " token " << t << " "
                  << i;
            }
        }
}

// A prefill computes a block in pieces, cut where its tiles end.
TEST_P(Scores, BlockAttentionDoesNotDependOnHowItIsCut) {
  constexpr std::size_t kTokens = 70;
  const Problem problem({.group = 3, .n_tokens = kTokens, .n = kTokens}, 5);
  const std::vector<float> sums(kTokens * 3, 1.5f);
  const std::vector<float> whole = block_attention_of(problem, sums, 0, 80);
  const QueryView queries = problem.queries();
  Scratch scratch;
  for (std::size_t step : {1u, 7u, 32u}) {
    std::vector<float> pieces(kTokens * 80);
    for (std::size_t t = 0; t < kTokens; t += step) {
      QueryView part = queries;
      part.data += t * queries.token_stride;
      part.n_tokens = std::min(step, kTokens - t);
      log_block_attention(part, problem.entries().keys, t, problem.rule, sums.data() + t * 3, 80,
                          pieces.data() + t * 80, scratch);
    }
    EXPECT_TRUE(same_bits(whole, pieces)) << step;
  }
}

// Without values the log-sum-exp has the same bits.
TEST_P(Scores, AttendWithoutValuesGivesTheSameSums) {
  std::uint32_t seed = 1;
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(shape.describe());
    const Problem problem(shape, ++seed);
    const QueryView queries = problem.queries();
    const std::size_t n_rows = queries.n_rows();
    const auto sums_of = [&](bool with_values) {
      std::vector<float> max(n_rows), sum(n_rows), out(n_rows * shape.head_dim), log(n_rows);
      const StateView state{max.data(), sum.data(), out.data()};
      reset_states(state, n_rows, shape.head_dim);
      EntryView entries = problem.entries();
      if (!with_values) entries.values = nullptr;
      Scratch scratch;
      attend(queries, entries, problem.rule, problem.visible.data(), state, scratch);
      finish_states(state, queries.n_tokens, queries.group, shape.head_dim, 0, nullptr, log.data());
      return log;
    };
    EXPECT_TRUE(same_bits(sums_of(true), sums_of(false)));
  }
}

// Pins the exponential, which everything above uses only inside sums: two entries, one with logit 0
// and one with a bias of x, have log-sum-exp log(1 + e^x) and second value weight e^x / (1 + e^x).
TEST_P(Scores, ExponentialIsAccurateToTheEndOfItsRange) {
  const std::vector<float> query(8);
  const std::vector<Half> keys(16);
  std::vector<Half> values(16);
  for (std::size_t c = 8; c < 16; ++c) values[c] = to_half(1.0f);
  const Visible visible{0, 2};
  for (float x = 0.0f; x > -90.0f; x -= 0.37f) {
    const float bias[] = {0.0f, x};
    States states(1, 8);
    Scratch scratch;
    attend({query.data(), 1, 1, 8, 8}, {keys.data(), values.data(), bias, 2}, {}, &visible,
           states.view(), scratch);
    const double exact = std::exp(static_cast<double>(x));
    const double got = static_cast<double>(states.view().out[0]);
    if (x > -87.3f) {
      ASSERT_NEAR(got, exact, exact * 3 * 0x1p-24) << x;  // 1.5 ulp of f32
    } else {
      ASSERT_EQ(got, 0.0) << x;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Target, Scores, ::testing::ValuesIn(instruction_sets()),
                         [](const auto& info) { return hwy::TargetName(info.param); });

}  // namespace
}  // namespace precis::testing
