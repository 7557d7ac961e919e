// The two inner loops of attention over packed rows of f16: logits of one group of entries, and its
// weighted sum of values. Each element is converted to f32 once and used by all rows of the call.
// Included once per target.
#if defined(PRECIS_KERNELS_PACKED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PRECIS_KERNELS_PACKED_INL_H_
#undef PRECIS_KERNELS_PACKED_INL_H_
#else
#define PRECIS_KERNELS_PACKED_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/cache_control.h"
#include "kernels/block-inl.h"
#include "kernels/row_type.h"

HWY_BEFORE_NAMESPACE();
namespace precis {
namespace HWY_NAMESPACE {

// Memory to fetch while computing, a line per step.
struct Ahead {
  const std::uint8_t* at = nullptr;
  std::size_t n_lines = 0;
  HWY_INLINE void step() {
    if (n_lines == 0) return;
    hwy::Prefetch(at);
    at += kLine;
    --n_lines;
  }
};

// Vectors of a row that are summed at a time. Their sums, and either a factor for each row and one
// vector of entries or the other way round, must fit 16 registers (32 on AVX3 and NEON).
template <std::size_t kRows>
constexpr std::size_t packed_vectors() {
  constexpr std::size_t kRegisters = (HWY_TARGET == HWY_NEON || HWY_TARGET <= HWY_AVX3) ? 32 : 16;
  constexpr std::size_t kMost = kGroupEntries / kLanes;
  std::size_t best = 1;
  for (std::size_t v = 2; v <= kMost; v *= 2)
    if (v * kRows + std::min(v, kRows) + 1 <= kRegisters) best = v;
  return best;
}

// kLanes numbers of a group as f32.
struct HalfLoader {
  const std::uint8_t* base;
  std::size_t stride;  // numbers from one line to the next
  HWY_INLINE hn::Vec<FloatTag> operator()(std::size_t line, std::size_t column) const {
    return load(FloatTag(), reinterpret_cast<const Half*>(base) + line * stride + column);
  }
};

struct FloatLoader {
  const float* base;
  std::size_t stride;
  HWY_INLINE hn::Vec<FloatTag> operator()(std::size_t line, std::size_t column) const {
    return hn::LoadU(FloatTag(), base + line * stride + column);
  }
};

// c[r][column ...] = start + sum over lines [first, last) of a[r][line] * b(line, column ...), for
// kV vectors of columns.
template <std::size_t kRows, std::size_t kV, class Load>
HWY_INLINE void add_lines(const float* HWY_RESTRICT a, std::size_t a_stride, std::size_t first,
                          std::size_t last, const Load& b, std::size_t column, Ahead& ahead,
                          hn::Vec<FloatTag> (&sum)[kRows][kV]) {
  const FloatTag d;
  for (std::size_t k = first; k < last; ++k) {
    ahead.step();
    if constexpr (kRows <= kV) {
      hn::Vec<FloatTag> factor[kRows];
      HWY_UNROLL(8)
      for (std::size_t r = 0; r < kRows; ++r) factor[r] = hn::Set(d, a[r * a_stride + k]);
      HWY_UNROLL(8)
      for (std::size_t v = 0; v < kV; ++v) {
        const auto x = b(k, column + v * kLanes);
        HWY_UNROLL(8)
        for (std::size_t r = 0; r < kRows; ++r) sum[r][v] = hn::MulAdd(factor[r], x, sum[r][v]);
      }
    } else {
      hn::Vec<FloatTag> x[kV];
      HWY_UNROLL(8)
      for (std::size_t v = 0; v < kV; ++v) x[v] = b(k, column + v * kLanes);
      HWY_UNROLL(8)
      for (std::size_t r = 0; r < kRows; ++r) {
        const auto factor = hn::Set(d, a[r * a_stride + k]);
        HWY_UNROLL(8)
        for (std::size_t v = 0; v < kV; ++v) sum[r][v] = hn::MulAdd(factor, x[v], sum[r][v]);
      }
    }
  }
}

// A full group of keys: logits q.k of kRows queries, z [kRows, z_stride].
template <std::size_t kRows>
struct KeyProduct {
  static constexpr std::size_t kV = packed_vectors<kRows>();
  const float* queries;  // [kRows, head_dim]
  std::size_t head_dim;
  float* z;
  std::size_t z_stride;

  template <class Load>
  HWY_INLINE void f16(const Load& b, Ahead& ahead) const {
    const FloatTag d;
    for (std::size_t column = 0; column < kGroupEntries; column += kV * kLanes) {
      hn::Vec<FloatTag> sum[kRows][kV];
      for (std::size_t r = 0; r < kRows; ++r)
        for (std::size_t v = 0; v < kV; ++v) sum[r][v] = hn::Zero(d);
      add_lines<kRows, kV>(queries, head_dim, 0, head_dim, b, column, ahead, sum);
      for (std::size_t r = 0; r < kRows; ++r)
        for (std::size_t v = 0; v < kV; ++v)
          hn::StoreU(sum[r][v], d, z + r * z_stride + column + v * kLanes);
    }
  }
};

// Values of a group: out [kRows, head_dim] = keep * out + p * values for entries [first, last) of
// the group's n. p is [kRows, p_stride].
template <std::size_t kRows>
struct ValueProduct {
  static constexpr std::size_t kV = packed_vectors<kRows>();
  std::size_t head_dim;
  std::size_t n;
  std::size_t first;
  std::size_t last;
  const float* p;
  std::size_t p_stride;
  const float* keep;  // [kRows]
  float* out;

  // Channels [column, column + kVectors * kLanes).
  template <std::size_t kVectors, class Load>
  HWY_INLINE void panel(const Load& b, std::size_t column, Ahead& ahead) const {
    const FloatTag d;
    hn::Vec<FloatTag> sum[kRows][kVectors];
    for (std::size_t r = 0; r < kRows; ++r) {
      const auto factor = hn::Set(d, keep[r]);
      for (std::size_t v = 0; v < kVectors; ++v)
        sum[r][v] = hn::Mul(hn::LoadU(d, out + r * head_dim + column + v * kLanes), factor);
    }
    add_lines<kRows, kVectors>(p, p_stride, first, last, b, column, ahead, sum);
    for (std::size_t r = 0; r < kRows; ++r)
      for (std::size_t v = 0; v < kVectors; ++v)
        hn::StoreU(sum[r][v], d, out + r * head_dim + column + v * kLanes);
  }

  template <class Load>
  HWY_INLINE void f16(const Load& b, const std::uint8_t* group, Ahead& ahead) const {
    std::size_t column = 0;
    for (; column + kV * kLanes <= head_dim; column += kV * kLanes) panel<kV>(b, column, ahead);
    if constexpr (kV > 1)
      for (; column + kLanes <= head_dim; column += kLanes) panel<1>(b, column, ahead);
    // head_dim is a multiple of 8 and lanes may be 16.
    for (; column < head_dim; ++column) {
      const auto* rows = reinterpret_cast<const Half*>(group) + column;
      for (std::size_t r = 0; r < kRows; ++r) {
        float sum = out[r * head_dim + column] * keep[r];
        for (std::size_t i = first; i < last; ++i)
          sum = std::fma(p[r * p_stride + i], to_float(rows[i * head_dim]), sum);
        out[r * head_dim + column] = sum;
      }
    }
  }
};

// n_lines lines of `columns` numbers, converted; columns past the last whole vector are left out.
template <class Load>
HWY_INLINE void expand(const Load& from, std::size_t n_lines, std::size_t columns, Ahead& ahead,
                       float* to) {
  const FloatTag d;
  for (std::size_t line = 0; line < n_lines; ++line) {
    ahead.step();
    for (std::size_t c = 0; c + kLanes <= columns; c += kLanes)
      hn::StoreU(from(line, c), d, to + line * columns + c);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace precis
HWY_AFTER_NAMESPACE();

#endif  // include guard
