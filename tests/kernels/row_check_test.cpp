#include "kernels/row_check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/packed_rows.h"

namespace precis {
namespace {

constexpr RowType kTypes[] = {RowType::kF16, RowType::kQ8_0, RowType::kQ4};

// A list of n packed entries of random rows; every hundredth row is 0, some are huge.
std::vector<std::uint8_t> packed(RowType type, std::size_t d, std::size_t n, bool values) {
  std::mt19937 draw(3);
  std::normal_distribution<float> normal;
  std::vector<std::uint8_t> out;
  for (std::size_t i = 0; i < n; i += kGroupEntries) {
    const std::size_t w = std::min(kGroupEntries, n - i);
    std::vector<float> rows(w * d);
    for (std::size_t r = 0; r < w * d; ++r)
      rows[r] = normal(draw) * (r / d % 100 == 0 ? 0.0f : r / d % 7 == 0 ? -1e9f : 1.0f);
    std::vector<std::uint8_t> group((values ? value_bytes : key_bytes)(type, d, w));
    (values ? pack_values : pack_keys)(type, rows.data(), w, d, group.data());
    out.insert(out.end(), group.begin(), group.end());
  }
  return out;
}

bool is_sound(RowType type, const std::vector<std::uint8_t>& rows, std::size_t d, std::size_t n,
              bool values) {
  return (values ? are_sound_values : are_sound_keys)(type, rows.data(), d, n);
}

TEST(RowCheck, WhatWasPackedIsSound) {
  for (const RowType type : kTypes)
    for (const std::size_t d : {32, 64, 128})
      for (const std::size_t n : {0, 1, 31, 32, 33, 130})
        for (const bool values : {false, true})
          EXPECT_TRUE(is_sound(type, packed(type, d, n, values), d, n, values))
              << row_type_name(type) << " " << d << " " << n << " " << values;
}

// Sound bytes are those whose rows are finite numbers: every byte is set to 0xff and 0x7c in turn.
TEST(RowCheck, WhatDoesNotUnpackToFiniteNumbersIsNotSound) {
  constexpr std::size_t d = 64;
  constexpr std::size_t n = 40;
  for (const RowType type : kTypes)
    for (const bool values : {false, true}) {
      const std::vector<std::uint8_t> whole = packed(type, d, n, values);
      std::size_t n_unsound = 0;
      for (std::size_t at = 0; at < whole.size(); ++at)
        for (const int byte : {0xff, 0x7c}) {
          std::vector<std::uint8_t> rows = whole;
          rows[at] = static_cast<std::uint8_t>(byte);
          if (!is_sound(type, rows, d, n, values)) {
            ++n_unsound;
            continue;
          }
          bool finite = true;
          for (std::size_t i = 0; i < n; i += kGroupEntries) {
            const std::size_t w = std::min(kGroupEntries, n - i);
            std::vector<float> numbers(w * d);
            const std::size_t start = (values ? value_bytes : key_bytes)(type, d, i);
            (values ? unpack_values : unpack_keys)(type, rows.data() + start, w, d, numbers.data());
            for (const float x : numbers) finite &= std::isfinite(x);
          }
          ASSERT_TRUE(finite) << row_type_name(type) << " byte " << at << " values " << values;
        }
      EXPECT_GT(n_unsound, 0u) << row_type_name(type);
    }
}

TEST(RowCheck, CodesAndScalesThatPackingNeverMakes) {
  std::vector<std::uint8_t> rows = packed(RowType::kQ8_0, 32, 3, true);
  rows[5] = 0x80;  // -128
  EXPECT_FALSE(is_sound(RowType::kQ8_0, rows, 32, 3, true));
  rows = packed(RowType::kQ8_0, 32, 3, false);
  rows[3 * 32 + 1] |= 0x80;  // the first scale, negative
  rows[3 * 32] = 1;
  EXPECT_FALSE(is_sound(RowType::kQ8_0, rows, 32, 3, false));
}

TEST(RowCheck, FiniteNumbers) {
  const std::vector<float> fine{0.0f, -0.0f, 1e-45f, -3e38f};
  EXPECT_TRUE(all_finite(fine.data(), fine.size()));
  for (const float wrong : {INFINITY, -INFINITY, NAN}) {
    std::vector<float> numbers = fine;
    numbers[2] = wrong;
    EXPECT_FALSE(all_finite(numbers.data(), numbers.size()));
  }
  for (const auto bits : std::vector<std::uint16_t>{0x7c00, 0xfc00, 0x7c01, 0xffff}) {
    const Half numbers[] = {{0x7bff}, {0x8000}, {bits}};
    EXPECT_TRUE(all_finite(numbers, 2));
    EXPECT_FALSE(all_finite(numbers, 3));
  }
}

}  // namespace
}  // namespace precis
