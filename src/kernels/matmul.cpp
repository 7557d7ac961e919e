#include "kernels/matmul.h"

#include <algorithm>
#include <cstdint>

#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/matmul.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace precis {
namespace HWY_NAMESPACE {

constexpr std::size_t kStep = kMatmulStep;

// rows [kPanel, kStep] -> panel [n, kPanel].
inline void turn_panel(const float* rows, std::size_t n, float* panel) {
  std::size_t k = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::Full128<float> d;
  const hn::Full128<std::uint32_t> d32;
  const hn::Full128<std::uint64_t> d64;
  for (; k + 4 <= n; k += 4) {
    for (std::size_t r = 0; r < kPanel; r += 4) {
      const float* from = rows + r * kStep + k;
      const auto a = hn::BitCast(d32, hn::LoadU(d, from));
      const auto b = hn::BitCast(d32, hn::LoadU(d, from + kStep));
      const auto c = hn::BitCast(d32, hn::LoadU(d, from + 2 * kStep));
      const auto e = hn::BitCast(d32, hn::LoadU(d, from + 3 * kStep));
      const auto ab_low = hn::BitCast(d64, hn::InterleaveLower(d32, a, b));
      const auto ab_high = hn::BitCast(d64, hn::InterleaveUpper(d32, a, b));
      const auto ce_low = hn::BitCast(d64, hn::InterleaveLower(d32, c, e));
      const auto ce_high = hn::BitCast(d64, hn::InterleaveUpper(d32, c, e));
      float* to = panel + k * kPanel + r;
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, ab_low, ce_low)), d, to);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, ab_low, ce_low)), d, to + kPanel);
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, ab_high, ce_high)), d, to + 2 * kPanel);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, ab_high, ce_high)), d, to + 3 * kPanel);
    }
  }
#endif
  for (; k < n; ++k)
    for (std::size_t r = 0; r < kPanel; ++r) panel[k * kPanel + r] = rows[r * kStep + k];
}

// Columns that fill no panel go through a tile of their own; y has no room for the rest of it.
inline void multiply_last_panel(Product<float> product, std::size_t rows, std::size_t first,
                                std::size_t n_columns) {
  float tile[kMaxRows * kPanel] = {};
  float* c = product.c;
  const std::size_t c_stride = product.c_stride;
  if (product.keep != nullptr)
    for (std::size_t r = 0; r < rows; ++r)
      std::copy_n(c + r * c_stride + first, n_columns, tile + r * kPanel);
  product.b = {product.b.column(first), product.b.panel_size};
  product.c = tile;
  product.c_stride = kPanel;
  multiply(product, rows, 0, kPanel);
  for (std::size_t r = 0; r < rows; ++r)
    std::copy_n(tile + r * kPanel, n_columns, c + r * c_stride + first);
}

void multiply_transposed(const float* x, std::size_t n_tokens, const MatrixSource& w,
                         std::size_t first_row, std::size_t last_row, float* y,
                         std::size_t y_stride, Scratch& scratch) {
  static constexpr float kOnes[kMaxRows] = {1, 1, 1, 1, 1, 1, 1, 1};
  const std::size_t n_rows = last_row - first_row;
  const std::size_t n_panels = (n_rows + kPanel - 1) / kPanel;
  const std::size_t whole = n_rows / kPanel * kPanel;
  float* rows = scratch.floats((kPanel + kMaxRows + n_panels * kPanel) * kStep);
  float* some_x = rows + kPanel * kStep;
  float* packed = some_x + kMaxRows * kStep;
  for (std::size_t k0 = 0; k0 < w.depth; k0 += kStep) {
    const std::size_t n = std::min(kStep, w.depth - k0);
    for (std::size_t p = 0; p < n_panels; ++p) {
      for (std::size_t r = 0; r < kPanel; ++r) {
        const std::size_t row = first_row + p * kPanel + r;
        if (row < last_row)
          w.expand(w, row, k0, n, rows + r * kStep);
        else
          std::fill_n(rows + r * kStep, n, 0.0f);
      }
      turn_panel(rows, n, packed + p * kPanel * n);
    }
    Product<float> product;
    // Beside each other: rows whose distance is a power of two would share the sets of the cache.
    product.a = some_x;
    product.a_stride = kStep;
    product.b = {packed, kPanel * n};
    product.depth = n;
    product.keep = k0 == 0 ? nullptr : kOnes;
    product.c_stride = y_stride;
    for (std::size_t t = 0; t < n_tokens; t += kGroupRows) {
      const std::size_t m = std::min(kGroupRows, n_tokens - t);
      for (std::size_t i = 0; i < m; ++i)
        std::copy_n(x + (t + i) * w.depth + k0, n, some_x + i * kStep);
      // The next tokens' piece of x comes from a far cache meanwhile.
      const std::size_t next = std::min(t + m + kGroupRows, n_tokens);
      for (std::size_t i = t + m; i < next; ++i)
        for (std::size_t k = 0; k < n; k += kLine / sizeof(float))
          hwy::Prefetch(x + i * w.depth + k0 + k);
      product.c = y + t * y_stride;
      multiply(product, m, 0, whole);
      if (whole < n_rows) multiply_last_panel(product, m, whole, n_rows - whole);
    }
  }
}

std::size_t matmul_panel_rows() { return kPanel; }

}  // namespace HWY_NAMESPACE
}  // namespace precis
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace precis {

HWY_EXPORT(multiply_transposed);
HWY_EXPORT(matmul_panel_rows);

void multiply_transposed(const float* x, std::size_t n_tokens, const MatrixSource& w,
                         std::size_t first_row, std::size_t last_row, float* y,
                         std::size_t y_stride, Scratch& scratch) {
  HWY_DYNAMIC_DISPATCH(multiply_transposed)
  (x, n_tokens, w, first_row, last_row, y, y_stride, scratch);
}

std::size_t matmul_panel_rows() { return HWY_DYNAMIC_DISPATCH(matmul_panel_rows)(); }

}  // namespace precis
#endif  // HWY_ONCE
