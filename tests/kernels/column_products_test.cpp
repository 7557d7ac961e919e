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

Rows make_rows(BlockFormat format, std::size_t n_rows, std::size_t width, unsigned seed) {
  std::mt19937 draw(seed);
  Rows rows;
  const auto put = [&](const auto& value) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    rows.packed.insert(rows.packed.end(), bytes, bytes + sizeof value);
  };
  for (std::size_t b = 0; b < n_rows * width / 32; ++b) {
    // 1 + k / 1024 in f16: exponent 15, mantissa k; and its sign.
    const unsigned mantissa = draw() % 1024;
    const bool negative = draw() % 4 == 0;
    const double scale = (negative ? -1.0 : 1.0) * (1.0 + mantissa / 1024.0);
    put(static_cast<std::uint16_t>((negative ? 0x8000u : 0u) | 15u << 10 | mantissa));
    int q[32];
    // Extremes included: -128 is legal in a file although no quantiser writes it.
    for (int& value : q)
      value = format == BlockFormat::kQ8_0 ? static_cast<int>(draw() % 256) - 128
                                           : static_cast<int>(draw() % 32) - 16;
    if (format == BlockFormat::kQ8_0) {
      for (const int value : q) put(static_cast<std::int8_t>(value));
    } else {
      std::uint32_t high = 0;
      for (unsigned i = 0; i < 32; ++i) high |= static_cast<unsigned>(q[i] + 16) >> 4 << i;
      put(high);
      for (int i = 0; i < 16; ++i)
        put(static_cast<std::uint8_t>(((q[i] + 16) & 15) | ((q[16 + i] + 16) & 15) << 4));
    }
    for (const int value : q) rows.weights.push_back(scale * value);
  }
  return rows;
}

std::vector<float> multiply(BlockFormat format, const Rows& rows, std::size_t n_rows,
                            std::size_t width, const std::vector<float>& x) {
  const std::size_t n = x.size() / width;
  std::vector<std::byte> columns(quantised_columns_bytes(width, n));
  std::vector<float> out(n * n_rows, -1.0f);
  const std::size_t half = width / kBlockWeights / 2;
  quantise_columns(x.data(), width, n, 0, half, columns.data());
  quantise_columns(x.data(), width, n, half, width / kBlockWeights, columns.data());
  multiply_columns(format, rows.packed.data(), width, 0, n_rows / 3, columns.data(), n, out.data(),
                   n_rows);
  multiply_columns(format, rows.packed.data(), width, n_rows / 3, n_rows, columns.data(), n,
                   out.data(), n_rows);
  return out;
}

class ColumnProducts : public testing::TestWithParam<BlockFormat> {
 protected:
  void SetUp() override {
    if (!column_products_available()) GTEST_SKIP() << "the processor lacks AVX2, FMA or F16C";
  }
};
INSTANTIATE_TEST_SUITE_P(Formats, ColumnProducts,
                         testing::Values(BlockFormat::kQ5_0, BlockFormat::kQ8_0));

// Columns of whole numbers with a largest one of 127 are quantised exactly, so that the products
// can be known.
TEST_P(ColumnProducts, EqualsTheDefinition) {
  std::mt19937 draw(3);
  for (const std::size_t width : {32, 64, 896}) {
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
  constexpr std::size_t kWidth = 160;
  const Rows rows = make_rows(GetParam(), kRows, kWidth, 5);
  std::mt19937 draw(6);
  std::normal_distribution<float> normal;
  std::vector<float> x(19 * kWidth);
  for (float& value : x) value = normal(draw);
  std::fill_n(x.begin() + 2 * kWidth, kWidth, 0.0f);  // a column of zeros
  for (std::size_t n = 1; n <= 19; ++n) {
    const std::vector<float> part(x.begin(), x.begin() + static_cast<long>(n * kWidth));
    const auto out = multiply(GetParam(), rows, kRows, kWidth, part);
    for (std::size_t c = 0; c < n; ++c) {
      const auto begin = x.begin() + static_cast<long>(c * kWidth);
      const std::vector<float> column(begin, begin + static_cast<long>(kWidth));
      const auto alone = multiply(GetParam(), rows, kRows, kWidth, column);
      ASSERT_EQ(std::memcmp(alone.data(), out.data() + c * kRows, kRows * sizeof(float)), 0)
          << "column " << c << " of " << n;
    }
  }
}

}  // namespace
}  // namespace precis
