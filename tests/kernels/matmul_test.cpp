// matmul.h against a loop in double precision.
#include "kernels/matmul.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <tuple>
#include <vector>

#include "kernels/problem.h"

namespace precis::testing {
namespace {

void copy_elements(const MatrixSource& source, std::size_t row, std::size_t first, std::size_t n,
                   float* out) {
  std::copy_n(static_cast<const float*>(source.data) + row * source.depth + first, n, out);
}

struct Case {
  std::size_t n_tokens, n_rows, depth;
  std::vector<float> x, w;

  Case(std::size_t tokens, std::size_t rows, std::size_t depth_)
      : n_tokens(tokens), n_rows(rows), depth(depth_), x(tokens * depth_), w(rows * depth_) {
    std::mt19937 random(static_cast<unsigned>(tokens * 7919 + rows * 31 + depth));
    std::normal_distribution<float> normal;
    for (float& value : x) value = normal(random);
    for (float& value : w) value = normal(random);
  }
  MatrixSource source() const { return {copy_elements, w.data(), nullptr, depth}; }
  std::vector<float> multiply() const {
    Scratch scratch;
    std::vector<float> y(n_tokens * n_rows);
    multiply_transposed(x.data(), n_tokens, source(), 0, n_rows, y.data(), n_rows, scratch);
    return y;
  }
};

class Matmul : public ::testing::TestWithParam<std::int64_t> {
 protected:
  UseInstructionSet use_{GetParam()};
};

TEST_P(Matmul, AgreesWithDoubles) {
  for (const auto& [tokens, rows, depth] : std::vector<std::tuple<int, int, int>>{{1, 1, 1},
                                                                                  {1, 17, 32},
                                                                                  {2, 16, 256},
                                                                                  {5, 31, 257},
                                                                                  {6, 33, 288},
                                                                                  {7, 64, 576},
                                                                                  {13, 5, 1000},
                                                                                  {12, 96, 1024},
                                                                                  {50, 48, 512}}) {
    const Case c(static_cast<std::size_t>(tokens), static_cast<std::size_t>(rows),
                 static_cast<std::size_t>(depth));
    const std::vector<float> y = c.multiply();
    for (std::size_t t = 0; t < c.n_tokens; ++t) {
      for (std::size_t r = 0; r < c.n_rows; ++r) {
        double sum = 0, size = 0;
        for (std::size_t k = 0; k < c.depth; ++k) {
          const double term = static_cast<double>(c.x[t * c.depth + k]) * c.w[r * c.depth + k];
          sum += term;
          size += std::abs(term);
        }
        // The bound of any order of f32 sums is depth * 2^-24 * size; rounding errors cancel.
        ASSERT_NEAR(y[t * c.n_rows + r], sum, 2e-6 * size + 1e-30)
            << tokens << " x " << rows << " x " << depth << " at " << t << ", " << r;
      }
    }
  }
}

TEST_P(Matmul, BitsDoNotDependOnHowTheWorkIsDivided) {
  const Case c(23, 75, 600);
  const std::vector<float> whole = c.multiply();
  Scratch scratch;
  for (const std::size_t n_rows : {1, 7, 16, 32, 74}) {
    for (const std::size_t n_tokens : {1, 5, 6, 22}) {
      std::vector<float> y(whole.size());
      for (std::size_t r = 0; r < c.n_rows; r += n_rows)
        for (std::size_t t = 0; t < c.n_tokens; t += n_tokens)
          multiply_transposed(c.x.data() + t * c.depth, std::min(n_tokens, c.n_tokens - t),
                              c.source(), r, std::min(r + n_rows, c.n_rows),
                              y.data() + t * c.n_rows + r, c.n_rows, scratch);
      ASSERT_EQ(std::memcmp(y.data(), whole.data(), y.size() * sizeof(float)), 0)
          << n_rows << " rows, " << n_tokens << " tokens at a time";
    }
  }
}

TEST_P(Matmul, WritesItsOwnColumnsOnly) {
  const Case c(9, 40, 300);
  constexpr std::size_t kStride = 61;
  constexpr std::size_t kFirst = 3, kLast = 22, kAt = 11;
  std::vector<float> y(c.n_tokens * kStride, 7.0f);
  Scratch scratch;
  multiply_transposed(c.x.data(), c.n_tokens, c.source(), kFirst, kLast, y.data() + kAt, kStride,
                      scratch);
  const std::vector<float> whole = c.multiply();
  for (std::size_t t = 0; t < c.n_tokens; ++t) {
    for (std::size_t i = 0; i < kStride; ++i) {
      const bool own = i >= kAt && i < kAt + kLast - kFirst;
      ASSERT_EQ(y[t * kStride + i], own ? whole[t * c.n_rows + kFirst + i - kAt] : 7.0f) << t << i;
    }
  }
}

TEST_P(Matmul, InfinityAndNanStayInTheirRow) {
  Case c(8, 20, 64);
  c.x[2 * c.depth + 5] = std::numeric_limits<float>::infinity();
  c.w[9 * c.depth + 1] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> y = c.multiply();
  for (std::size_t t = 0; t < c.n_tokens; ++t)
    for (std::size_t r = 0; r < c.n_rows; ++r)
      EXPECT_EQ(std::isfinite(y[t * c.n_rows + r]), t != 2 && r != 9) << t << ", " << r;
}

INSTANTIATE_TEST_SUITE_P(Target, Matmul, ::testing::ValuesIn(instruction_sets()),
                         [](const auto& info) { return hwy::TargetName(info.param); });

}  // namespace
}  // namespace precis::testing
