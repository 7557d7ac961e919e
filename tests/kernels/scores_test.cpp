// add_attention_mass and compute_logits against the oracle and against each other.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <numeric>
#include <vector>

#include "kernels/attention.h"
#include "kernels/attention_ref.h"
#include "kernels/problem.h"

namespace precis::testing {
namespace {

class Scores : public ::testing::TestWithParam<std::int64_t> {
 protected:
  UseInstructionSet use_{GetParam()};
};

std::vector<float> mass_of(const Problem& problem, float start) {
  std::vector<float> mass(problem.shape.n, start);
  Scratch scratch;
  add_attention_mass(problem.queries(), problem.entries(), problem.rule, problem.visible.data(),
                     mass.data(), scratch);
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

TEST_P(Scores, LogitsAgreeWithScalarLoop) {
  for (std::size_t d : {8u, 64u, 72u, 80u, 96u, 128u, 256u, 512u}) {
    for (std::size_t n : {0u, 1u, 63u, 64u, 65u, 200u}) {
      for (float cap : {0.0f, 30.0f}) {
        const Problem problem({.head_dim = d, .n = n, .softcap = cap},
                              static_cast<unsigned>(d + n));
        const QueryView queries = problem.queries();
        std::vector<float> logits(n + 1, 9.0f);
        compute_logits(queries.data, problem.entries().keys, n, d, problem.rule, logits.data());
        for (std::size_t j = 0; j < n; ++j) {
          double z = 0;
          for (std::size_t c = 0; c < d; ++c)
            z += static_cast<double>(queries.data[c]) *
                 static_cast<double>(to_float(problem.entries().keys[j * d + c]));
          z *= static_cast<double>(problem.rule.scale);
          if (cap != 0.0f) z = 30.0 * std::tanh(z / 30.0);
          ASSERT_NEAR(static_cast<double>(logits[j]), z, problem.logit_error()) << d << " " << j;
        }
        ASSERT_EQ(logits[n], 9.0f) << "written past the end";
      }
    }
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
