#include "kernels/column_products.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

namespace precis {
namespace {

// Rows in GGUF's format with their weights written out, after the format's definition.
struct Rows {
  std::vector<std::byte> packed;
  std::vector<double> weights;  // [n_rows, width]
};

// 1 + k / 1024 in f16: exponent 15, mantissa k; and its sign.
struct Scale {
  std::uint16_t bits = 0;
  double value = 0;
};

Scale draw_scale(std::mt19937& draw) {
  const unsigned mantissa = draw() % 1024;
  const bool negative = draw() % 4 == 0;
  return {static_cast<std::uint16_t>((negative ? 0x8000u : 0u) | 15u << 10 | mantissa),
          (negative ? -1.0 : 1.0) * (1.0 + mantissa / 1024.0)};
}

template <class T>
void put(Rows& rows, const T& value) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&value);
  rows.packed.insert(rows.packed.end(), bytes, bytes + sizeof value);
}

void add_small_block(ColumnFormat format, std::mt19937& draw, Rows& rows) {
  const Scale scale = draw_scale(draw);
  put(rows, scale.bits);
  int q[32];
  // Extremes included: -128 is legal in a file although no quantiser writes it.
  for (int& value : q)
    value = format == ColumnFormat::kQ8_0 ? static_cast<int>(draw() % 256) - 128
                                          : static_cast<int>(draw() % 32) - 16;
  if (format == ColumnFormat::kQ8_0) {
    for (const int value : q) put(rows, static_cast<std::int8_t>(value));
  } else {
    std::uint32_t high = 0;
    for (unsigned i = 0; i < 32; ++i) high |= static_cast<unsigned>(q[i] + 16) >> 4 << i;
    put(rows, high);
    for (int i = 0; i < 16; ++i)
      put(rows, static_cast<std::uint8_t>(((q[i] + 16) & 15) | ((q[16 + i] + 16) & 15) << 4));
  }
  for (const int value : q) rows.weights.push_back(scale.value * value);
}

// 8 parts of 32 weights: scale * q - minimum, both 6 bits times an f16. The low nibbles of 32 bytes
// are a part, the high ones the next.
void add_q4_block(std::mt19937& draw, Rows& rows) {
  const Scale scale = draw_scale(draw);
  const Scale minimum = draw_scale(draw);
  unsigned s[8];
  unsigned m[8];
  std::uint8_t packed[12] = {};
  std::uint8_t low[128] = {};
  for (unsigned i = 0; i < 8; ++i) {
    s[i] = draw() % 64;
    m[i] = draw() % 64;
    if (i < 4) {
      packed[i] |= static_cast<std::uint8_t>(s[i]);
      packed[i + 4] |= static_cast<std::uint8_t>(m[i]);
    } else {
      packed[i + 4] = static_cast<std::uint8_t>((s[i] & 15) | (m[i] & 15) << 4);
      packed[i - 4] |= static_cast<std::uint8_t>(s[i] >> 4 << 6);
      packed[i] |= static_cast<std::uint8_t>(m[i] >> 4 << 6);
    }
  }
  for (unsigned i = 0; i < 256; ++i) {
    const unsigned q = draw() % 16;
    low[i / 64 * 32 + i % 32] |= static_cast<std::uint8_t>(q << (i % 64 < 32 ? 0 : 4));
    rows.weights.push_back(scale.value * s[i / 32] * q - minimum.value * m[i / 32]);
  }
  put(rows, scale.bits);
  put(rows, minimum.bits);
  put(rows, packed);
  put(rows, low);
}

// Weight i of a half of 128: low four bits in byte i % 64, its upper nibble from the second 64 on;
// two more bits in byte i % 32, pair i / 32. 16 weights share a signed scale.
void add_q6_block(std::mt19937& draw, Rows& rows) {
  std::uint8_t low[128] = {};
  std::uint8_t high[64] = {};
  std::int8_t scales[16];
  for (std::int8_t& s : scales) s = static_cast<std::int8_t>(static_cast<int>(draw() % 256) - 128);
  const Scale scale = draw_scale(draw);
  for (int i = 0; i < 256; ++i) {
    const int q = static_cast<int>(draw() % 64);
    const int at = i % 128;
    low[i / 128 * 64 + at % 64] |= static_cast<std::uint8_t>((q & 15) << (at < 64 ? 0 : 4));
    high[i / 128 * 32 + at % 32] |= static_cast<std::uint8_t>((q >> 4) << at / 32 * 2);
    rows.weights.push_back(scale.value * scales[i / 16] * (q - 32));
  }
  put(rows, low);
  put(rows, high);
  put(rows, scales);
  put(rows, scale.bits);
}

Rows make_rows(ColumnFormat format, std::size_t n_rows, std::size_t width, unsigned seed) {
  std::mt19937 draw(seed);
  Rows rows;
  for (std::size_t b = 0; b < n_rows * width / column_block(format); ++b) {
    if (format == ColumnFormat::kQ4_K)
      add_q4_block(draw, rows);
    else if (format == ColumnFormat::kQ6_K)
      add_q6_block(draw, rows);
    else
      add_small_block(format, draw, rows);
  }
  return rows;
}

std::vector<float> multiply(ColumnFormat format, const Rows& rows, std::size_t n_rows,
                            std::size_t width, const std::vector<float>& x) {
  const std::size_t n = x.size() / width;
  const std::size_t block = column_block(format);
  std::vector<std::byte> columns(quantised_columns_bytes(block, width, n));
  std::vector<float> out(n * n_rows, -1.0f);
  const std::size_t half = width / block / 2;
  quantise_columns(block, x.data(), width, n, 0, half, columns.data());
  quantise_columns(block, x.data(), width, n, half, width / block, columns.data());
  multiply_columns(format, rows.packed.data(), width, 0, n_rows / 3, columns.data(), n, out.data(),
                   n_rows);
  multiply_columns(format, rows.packed.data(), width, n_rows / 3, n_rows, columns.data(), n,
                   out.data(), n_rows);
  return out;
}

class ColumnProducts : public testing::TestWithParam<ColumnFormat> {};

// Without AVX2, FMA or F16C there are no such products, and nothing to test.
std::vector<ColumnFormat> formats_here() {
  if (!column_products_available()) return {};
  return {ColumnFormat::kQ5_0, ColumnFormat::kQ8_0, ColumnFormat::kQ4_K, ColumnFormat::kQ6_K};
}
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ColumnProducts);
INSTANTIATE_TEST_SUITE_P(Formats, ColumnProducts, testing::ValuesIn(formats_here()));

// Columns of whole numbers with a largest one of 127 are quantised exactly, so that the products
// can be known.
TEST_P(ColumnProducts, EqualsTheDefinition) {
  std::mt19937 draw(3);
  for (const std::size_t n_blocks : {1, 2, 28}) {
    const std::size_t width = n_blocks * column_block(GetParam());
    for (const std::size_t n : {1, 2, 3, 7, 8, 9, 16, 21}) {
      constexpr std::size_t kRows = 37;
      const Rows rows = make_rows(GetParam(), kRows, width, static_cast<unsigned>(width + n));
      std::vector<float> x(n * width);
      for (std::size_t i = 0; i < x.size(); ++i)
        x[i] = i % 32 == 5 ? 127.0f : static_cast<float>(static_cast<int>(draw() % 255) - 127);
      const auto out = multiply(GetParam(), rows, kRows, width, x);
      for (std::size_t c = 0; c < n; ++c) {
        for (std::size_t r = 0; r < kRows; ++r) {
          double sum = 0;
          double size = 0;
          for (std::size_t i = 0; i < width; ++i) {
            const double term = rows.weights[r * width + i] * x[c * width + i];
            sum += term;
            size += std::abs(term);
          }
          ASSERT_NEAR(out[c * kRows + r], sum, 1e-6 * size) << width << " wide, column " << c;
        }
      }
    }
  }
}

TEST_P(ColumnProducts, AColumnDoesNotDependOnTheOthers) {
  constexpr std::size_t kRows = 33;
  const std::size_t width = 5 * column_block(GetParam());
  const Rows rows = make_rows(GetParam(), kRows, width, 5);
  std::mt19937 draw(6);
  std::normal_distribution<float> normal;
  std::vector<float> x(19 * width);
  for (float& value : x) value = normal(draw);
  std::fill_n(x.begin() + 2 * width, width, 0.0f);  // a column of zeros
  for (std::size_t n = 1; n <= 19; ++n) {
    const std::vector<float> part(x.begin(), x.begin() + static_cast<long>(n * width));
    const auto out = multiply(GetParam(), rows, kRows, width, part);
    for (std::size_t c = 0; c < n; ++c) {
      const auto begin = x.begin() + static_cast<long>(c * width);
      const std::vector<float> column(begin, begin + static_cast<long>(width));
      const auto alone = multiply(GetParam(), rows, kRows, width, column);
      ASSERT_EQ(std::memcmp(alone.data(), out.data() + c * kRows, kRows * sizeof(float)), 0)
          << "column " << c << " of " << n;
    }
  }
}

}  // namespace
}  // namespace precis
