// base/half.h against an independent computation in double.
#include "base/half.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

namespace precis {
namespace {

Half half_of(std::uint32_t bits) { return {static_cast<std::uint16_t>(bits)}; }

// Value of a finite half by the definition of the format.
double value_of(std::uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 10 & 31);
  const int mantissa = static_cast<int>(bits & 1023);
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}

// The half nearest to a finite x, ties to even mantissa, by search among all of that sign.
std::uint32_t nearest(double x) {
  const std::uint32_t sign = std::signbit(x) ? 0x8000 : 0;
  const double magnitude = std::fabs(x);
  if (magnitude >= 65520.0) return sign | 0x7c00;  // half way to 65536, which would be the next
  std::uint32_t low = 0;
  std::uint32_t high = 0x7bff;
  while (low < high) {  // the largest half <= magnitude
    const std::uint32_t middle = (low + high + 1) / 2;
    if (value_of(middle) <= magnitude)
      low = middle;
    else
      high = middle - 1;
  }
  if (low == 0x7bff) return sign | low;
  const double below = magnitude - value_of(low);
  const double above = value_of(low + 1) - magnitude;
  const bool up = above < below || (above == below && low % 2 == 1);
  return sign | (up ? low + 1 : low);
}

TEST(Half, EveryBitPatternHasTheValueOfTheFormat) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = to_float(half_of(bits));
    ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0) << bits;
    if ((bits & 0x7c00) != 0x7c00) {
      ASSERT_EQ(static_cast<double>(value), value_of(bits)) << bits;
    } else {
      ASSERT_EQ(std::isinf(value), (bits & 1023) == 0) << bits;
      ASSERT_EQ(std::isnan(value), (bits & 1023) != 0) << bits;
    }
  }
}

TEST(Half, EveryBitPatternSurvivesARoundTrip) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const Half back = to_half(to_float(half_of(bits)));
    if ((bits & 0x7fff) > 0x7c00) {
      ASSERT_GT(back.bits & 0x7fff, 0x7c00) << bits;
    } else {
      ASSERT_EQ(back.bits, bits);
    }
  }
}

TEST(Half, RoundsToNearestEvenAroundEveryHalf) {
  for (std::uint32_t bits = 0; bits < 0x7bff; ++bits) {
    const double tie = (value_of(bits) + value_of(bits + 1)) / 2;
    const auto middle = static_cast<float>(tie);
    ASSERT_EQ(static_cast<double>(middle), tie);  // 11 bits + 1: exact
    for (float x : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e9f)}) {
      ASSERT_EQ(to_half(x).bits, nearest(static_cast<double>(x))) << bits;
      ASSERT_EQ(to_half(-x).bits, nearest(-static_cast<double>(x))) << bits;
    }
  }
}

TEST(Half, RandomFloatsRoundToNearestEven) {
  std::mt19937 random(1);
  for (int i = 0; i < 200000; ++i) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (std::isnan(x)) {
      ASSERT_GT(to_half(x).bits & 0x7fff, 0x7c00);
    } else if (!std::isinf(x)) {
      ASSERT_EQ(to_half(x).bits, nearest(static_cast<double>(x))) << x;
    }
  }
}

TEST(Half, Extremes) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(to_half(kInfinity).bits, 0x7c00);
  EXPECT_EQ(to_half(-kInfinity).bits, 0xfc00);
  EXPECT_EQ(to_half(65504.0f).bits, 0x7bff);
  EXPECT_EQ(to_half(std::nextafter(65520.0f, 0.0f)).bits, 0x7bff);
  EXPECT_EQ(to_half(65520.0f).bits, 0x7c00);
  EXPECT_EQ(to_half(-0.0f).bits, 0x8000);
  EXPECT_EQ(to_half(0x1p-25f).bits, 0) << "a tie with zero goes to zero";
  EXPECT_EQ(to_half(std::nextafter(0x1p-25f, 1.0f)).bits, 1);
}

}  // namespace
}  // namespace precis
