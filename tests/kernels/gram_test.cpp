// Sums of outer products against a plain loop in double.
#include "kernels/gram.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/problem.h"

namespace precis::testing {
namespace {

class Gram : public ::testing::TestWithParam<std::int64_t> {
 protected:
  UseInstructionSet use_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Target, Gram, ::testing::ValuesIn(instruction_sets()),
                         [](const auto& info) { return hwy::TargetName(info.param); });

TEST_P(Gram, IsTheSumOfOuterProducts) {
  for (const std::size_t width : {8u, 40u, 64u})
    for (const std::size_t n : {1u, 7u, 255u, 256u, 257u, 900u}) {
      const std::size_t stride = width + 3;
      std::mt19937 draw(static_cast<std::uint32_t>(n + width));
      std::normal_distribution<float> normal(0.5f, 1.0f);
      std::vector<float> rows(n * stride);
      for (float& x : rows) x = normal(draw);
      std::vector<double> gram(width * width, 1.0);
      Scratch scratch;
      add_gram(rows.data(), n, stride, width, gram.data(), scratch);
      for (std::size_t a = 0; a < width; ++a)
        for (std::size_t b = 0; b < width; ++b) {
          double sum = 1.0;
          double size = 1.0;
          for (std::size_t r = 0; r < n; ++r) {
            const double term = static_cast<double>(rows[r * stride + a]) *
                                static_cast<double>(rows[r * stride + b]);
            sum += term;
            size += std::abs(term);
          }
          EXPECT_NEAR(gram[a * width + b], sum, 4e-6 * size);
          EXPECT_EQ(gram[a * width + b], gram[b * width + a]);
        }
    }
}

}  // namespace
}  // namespace precis::testing
