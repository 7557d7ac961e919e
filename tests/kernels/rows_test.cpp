// rows.h against scalar loops.
#include "kernels/rows.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/problem.h"

namespace precis::testing {
namespace {

class Rows : public ::testing::TestWithParam<std::int64_t> {
 protected:
  UseInstructionSet use_{GetParam()};
};

TEST_P(Rows, AllHalfsConvertToTheBitsOfToFloat) {
  std::vector<Half> from(65536);
  for (std::size_t i = 0; i < from.size(); ++i) from[i].bits = static_cast<std::uint16_t>(i);
  std::vector<float> to(from.size());
  convert_rows(from.data(), to.data(), from.size());
  for (std::size_t i = 0; i < from.size(); ++i)
    ASSERT_EQ(std::bit_cast<std::uint32_t>(to[i]), std::bit_cast<std::uint32_t>(to_float(from[i])))
        << i;
}

// Every half, the two floats beside it, the ties between halfs and the floats beside those, and
// random bit patterns (which include NaN and infinity).
std::vector<float> interesting_floats() {
  std::vector<float> list;
  std::mt19937 random(1);
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(to_float({static_cast<std::uint16_t>(i)}));
    for (std::uint32_t offset : {0u, 1u, ~0u, 0x1000u, 0x1001u, 0xfffu})
      list.push_back(std::bit_cast<float>(bits + offset));
    list.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
  }
  for (int i = 0; i < 3000; ++i) {  // ties of subnormals
    const float half_steps = static_cast<float>(i);
    list.push_back(half_steps * 0x1p-25f);
    list.push_back(std::nextafter(half_steps * 0x1p-25f, 1.0f));
    list.push_back(std::nextafter(half_steps * 0x1p-25f, -1.0f));
  }
  return list;
}

TEST_P(Rows, FloatsConvertToTheBitsOfToHalf) {
  const std::vector<float> from = interesting_floats();
  std::vector<Half> to(from.size());
  convert_rows(from.data(), to.data(), from.size());
  for (std::size_t i = 0; i < from.size(); ++i)
    ASSERT_EQ(to[i].bits, to_half(from[i]).bits)
        << std::hex << std::bit_cast<std::uint32_t>(from[i]);
}

TEST_P(Rows, ConvertsAnyLengthAndNoMore) {
  for (std::size_t n = 0; n < 40; ++n) {
    std::vector<Half> from(n + 1, to_half(2.0f));
    std::vector<float> to(n + 2, 7.0f);
    convert_rows(from.data() + 1, to.data() + 1, n);
    for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(to[1 + i], 2.0f);
    ASSERT_EQ(to[0], 7.0f);
    ASSERT_EQ(to[n + 1], 7.0f);
    std::vector<Half> back(n + 2, to_half(5.0f));
    convert_rows(to.data() + 1, back.data() + 1, n);
    for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(back[1 + i], to_half(2.0f));
    ASSERT_EQ(back[n + 1], to_half(5.0f));
  }
}

TEST_P(Rows, NormsAndDotAgreeWithScalarLoops) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (std::size_t width : {1u, 7u, 8u, 64u, 72u, 80u, 100u, 256u, 512u}) {
    const std::size_t n = 5;
    std::vector<Half> rows(n * width + 1);
    for (Half& x : rows) x = to_half(normal(random));
    const Half* at = rows.data() + 1;
    std::vector<float> norms(n);
    row_norms(at, n, width, norms.data());
    for (std::size_t j = 0; j < n; ++j) {
      double square = 0;
      double product = 0;
      double size = 0;
      for (std::size_t c = 0; c < width; ++c) {
        const double x = static_cast<double>(to_float(at[j * width + c]));
        const double y = static_cast<double>(to_float(at[c]));
        square += x * x;
        product += x * y;
        size += std::fabs(x * y);
      }
      // Independent rounding errors, as in Problem::logit_error.
      const double relative = (4 * std::sqrt(static_cast<double>(width)) + 4) * 0x1p-24;
      ASSERT_NEAR(static_cast<double>(norms[j]), std::sqrt(square), relative * std::sqrt(square));
      ASSERT_NEAR(static_cast<double>(dot(at + j * width, at, width)), product, relative * size);
    }
  }
}

TEST_P(Rows, LargestAndSmallestHalfs) {
  const std::vector<Half> large(64, to_half(65504.0f));
  const std::vector<Half> tiny(64, Half{1});
  float norm = 0;
  row_norms(large.data(), 1, 64, &norm);
  EXPECT_FLOAT_EQ(norm, 8 * 65504.0f);
  row_norms(tiny.data(), 1, 64, &norm);
  EXPECT_EQ(norm, 8 * 0x1p-24f);
  EXPECT_EQ(dot(large.data(), tiny.data(), 64), 64 * 65504.0f * 0x1p-24f);
}

INSTANTIATE_TEST_SUITE_P(Target, Rows, ::testing::ValuesIn(instruction_sets()),
                         [](const auto& info) { return hwy::TargetName(info.param); });

}  // namespace
}  // namespace precis::testing
