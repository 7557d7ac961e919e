// The one inner loop of attention: c = keep * c + a * b for a few rows of c. Both halves of
// attention are of this form: logits = queries * keys^T with b = transposed keys, and output = p *
// values. Included once per target.
//
// Each element of c is summed over k in order, starting from keep * c, whatever the number of rows,
// the type of b and the layout of b. Hence a row's bits do not depend on the rows beside it, and
// decode gives the same bits as prefill.
#if defined(PRECIS_KERNELS_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PRECIS_KERNELS_PRODUCT_INL_H_
#undef PRECIS_KERNELS_PRODUCT_INL_H_
#else
#define PRECIS_KERNELS_PRODUCT_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/cache_control.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace precis {
namespace HWY_NAMESPACE {

// Packed panels are this many vectors wide, and this many rows of c are kept in registers with
// them: 6 x 2 accumulators, 2 vectors of b and 1 of a fit 16 registers; NEON and AVX3 have 32.
constexpr std::size_t kPanelVectors = HWY_TARGET == HWY_NEON ? 4 : 2;
constexpr std::size_t kPanel = kPanelVectors * kLanes;
constexpr std::size_t kGroupRows = kLanes == 16 ? 8 : 6;
constexpr std::size_t kMaxRows = 8;  // rows that one call of multiply() takes

constexpr std::size_t kLine = 64;  // bytes of a cache line

// The right factor b [depth, columns]: f32 in packed panels [columns / kPanel, depth, kPanel], or
// f16 as it lies in memory.
template <class E>
struct Factor;

template <>
struct Factor<float> {
  const float* data = nullptr;
  std::size_t panel_size = 0;  // elements from one panel to the next
  static constexpr std::size_t row_stride() { return kPanel; }
  const float* column(std::size_t c) const { return data + c / kPanel * panel_size + c % kPanel; }
  Factor from_row(std::size_t k) const { return {data + k * kPanel, panel_size}; }
};

template <>
struct Factor<Half> {
  const Half* data = nullptr;
  std::size_t stride = 0;
  std::size_t row_stride() const { return stride; }
  const Half* column(std::size_t c) const { return data + c; }
  Factor from_row(std::size_t k) const { return {data + k * stride, stride}; }
};

// Memory that the caller will read next; fetched line by line while b is multiplied (f16 only,
// where b comes from memory). Decode of 32k entries on one thread of a Zen 1: 3.2 -> 4.3 GB/s with
// head_dim 64, 2.7 -> 4.2 GB/s with 256.
struct Upcoming {
  const Half* data = nullptr;
  std::size_t n = 0;
};

template <class E>
struct Product {
  const float* a = nullptr;  // [rows, depth]
  std::size_t a_stride = 0;
  Factor<E> b;  // [depth, columns]
  std::size_t depth = 0;
  const float* keep = nullptr;  // [rows], nullptr: all 0, c is only written
  float* c = nullptr;           // [rows, columns]
  std::size_t c_stride = 0;
  Upcoming upcoming;
};

// Enough independent sums (6 to 12) to hide the latency of the multiply-add. Converting a vector
// from f16 costs as much as 2 multiply-adds on Zen 1, hence all 7 or 8 rows share it rather than 4
// and 4.
template <class E>
constexpr std::size_t vectors_per_step(std::size_t rows) {
  if (sizeof(E) == sizeof(float)) return kPanelVectors;
  return rows == 1 ? 8 : rows == 2 ? 4 : rows <= 6 ? 2 : 1;
}

template <std::size_t kRows, std::size_t kVectors, class D, class E>
HWY_INLINE void multiply_panel(D d, const Product<E>& product, std::size_t column) {
  const std::size_t lanes = hn::Lanes(d);
  hn::Vec<D> sum[kRows][kVectors];
  float* HWY_RESTRICT c = product.c + column;
  HWY_UNROLL(16)
  for (std::size_t r = 0; r < kRows; ++r) {
    HWY_UNROLL(16)
    for (std::size_t v = 0; v < kVectors; ++v) {
      sum[r][v] = hn::Zero(d);
      if (product.keep != nullptr) {
        const auto old = hn::LoadU(d, c + r * product.c_stride + v * lanes);
        sum[r][v] = hn::Mul(old, hn::Set(d, product.keep[r]));
      }
    }
  }
  const float* HWY_RESTRICT a = product.a;
  const std::size_t a_stride = product.a_stride;
  const E* HWY_RESTRICT b = product.b.column(column);
  const std::size_t b_stride = product.b.row_stride();
  // As an address, because the last line may lie past the end of the array.
  const std::size_t skip = column / (kVectors * lanes) * product.depth * kLine;
  const bool fetch = skip < product.upcoming.n * sizeof(Half);
  auto next = reinterpret_cast<std::uintptr_t>(product.upcoming.data) + (fetch ? skip : 0);
  for (std::size_t k = 0; k < product.depth; ++k, b += b_stride) {
    if constexpr (sizeof(E) == sizeof(Half)) {
      hwy::Prefetch(reinterpret_cast<const char*>(next));
      next += fetch ? kLine : 0;
    }
    hn::Vec<D> row[kVectors];
    HWY_UNROLL(16)
    for (std::size_t v = 0; v < kVectors; ++v) row[v] = load(d, b + v * lanes);
    HWY_UNROLL(16)
    for (std::size_t r = 0; r < kRows; ++r) {
      const auto x = hn::Set(d, a[r * a_stride + k]);
      HWY_UNROLL(16)
      for (std::size_t v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(x, row[v], sum[r][v]);
    }
  }
  HWY_UNROLL(16)
  for (std::size_t r = 0; r < kRows; ++r) {
    HWY_UNROLL(16)
    for (std::size_t v = 0; v < kVectors; ++v)
      hn::StoreU(sum[r][v], d, c + r * product.c_stride + v * lanes);
  }
}

// Columns [first, last), both multiples of 8.
template <std::size_t kRows, std::size_t kVectors, class E>
HWY_INLINE void multiply_columns(const Product<E>& product, std::size_t first, std::size_t last) {
  constexpr std::size_t kStep = kVectors * kLanes;
  for (; first + kStep <= last; first += kStep)
    multiply_panel<kRows, kVectors>(FloatTag(), product, first);
  if constexpr (kVectors > 1) {
    if (first < last) multiply_columns<kRows, kVectors / 2>(product, first, last);
  } else if constexpr (kLanes > 8) {
    if (first < last) multiply_panel<kRows, 1>(hn::CappedTag<float, 8>(), product, first);
  }
}

template <std::size_t kRows, class E>
HWY_NOINLINE void multiply_rows(const Product<E>& product, std::size_t first, std::size_t last) {
  multiply_columns<kRows, vectors_per_step<E>(kRows)>(product, first, last);
}

// rows is 1..kMaxRows.
template <class E>
HWY_INLINE void multiply(const Product<E>& product, std::size_t rows, std::size_t first,
                         std::size_t last) {
  switch (rows) {
    case 1:
      return multiply_rows<1>(product, first, last);
    case 2:
      return multiply_rows<2>(product, first, last);
    case 3:
      return multiply_rows<3>(product, first, last);
    case 4:
      return multiply_rows<4>(product, first, last);
    case 5:
      return multiply_rows<5>(product, first, last);
    case 6:
      return multiply_rows<6>(product, first, last);
    case 7:
      return multiply_rows<7>(product, first, last);
    default:
      return multiply_rows<8>(product, first, last);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace precis
HWY_AFTER_NAMESPACE();

#endif  // include guard
