// The two inner loops of attention over packed rows, per row type: logits of one group of entries,
// and its weighted sum of values. Each element is converted to f32 once and used by all rows of the
// call. Included once per target.
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

// kLanes numbers of a group as f32. Codes of q4 come as the whole numbers 0..15.
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

struct ByteLoader {
  const std::uint8_t* base;
  std::size_t stride;
  HWY_INLINE hn::Vec<FloatTag> operator()(std::size_t line, std::size_t column) const {
    const FloatTag d;
    const hn::Rebind<std::int8_t, FloatTag> d8;
    const hn::RebindToSigned<FloatTag> d32;
    const auto* at = reinterpret_cast<const std::int8_t*>(base) + line * stride + column;
    return hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, at)));
  }
};

// Lines of 32 codes in 16 bytes: code i in the low half of byte i, i + 16 in the high half.
struct NibbleLoader {
  const std::uint8_t* base;
  std::size_t stride;  // bytes from one line to the next
  HWY_INLINE hn::Vec<FloatTag> operator()(std::size_t line, std::size_t column) const {
    const FloatTag d;
    const hn::Rebind<std::uint8_t, FloatTag> d8;
    const hn::RebindToSigned<FloatTag> d32;
    constexpr std::size_t kHalf = kGroupEntries / 2;
    const std::size_t block = column / kGroupEntries;
    const std::size_t in_block = column % kGroupEntries;
    const auto* at = base + line * stride + block * kHalf + in_block % kHalf;
    const auto bytes = hn::PromoteTo(d32, hn::LoadU(d8, at));
    const auto codes =
        in_block < kHalf ? hn::And(bytes, hn::Set(d32, 15)) : hn::ShiftRight<4>(bytes);
    return hn::ConvertTo(d, codes);
  }
};

// c[r][column ...] = start + sum over lines [first, last) of a[r][line] * b(line, column ...), for
// kV vectors of columns. scale: the sum is multiplied by scale[column ...] and added to c instead.
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
  HWY_INLINE void plain(const Load& b, const float* a, const float* start, Ahead& ahead) const {
    const FloatTag d;
    for (std::size_t column = 0; column < kGroupEntries; column += kV * kLanes) {
      hn::Vec<FloatTag> sum[kRows][kV];
      for (std::size_t r = 0; r < kRows; ++r)
        for (std::size_t v = 0; v < kV; ++v)
          sum[r][v] = hn::Set(d, start == nullptr ? 0.0f : start[r]);
      add_lines<kRows, kV>(a, head_dim, 0, head_dim, b, column, ahead, sum);
      for (std::size_t r = 0; r < kRows; ++r)
        for (std::size_t v = 0; v < kV; ++v)
          hn::StoreU(sum[r][v], d, z + r * z_stride + column + v * kLanes);
    }
  }

  template <class Load>
  HWY_INLINE void f16(const Load& b, Ahead& ahead) const {
    plain(b, queries, nullptr, ahead);
  }

  // The scale of a block of channels is applied to its sum.
  template <class Load>
  HWY_INLINE void q8(const Load& b, const std::uint8_t* group, Ahead& ahead) const {
    const FloatTag d;
    const HalfLoader scales{group + head_dim * kGroupEntries, kGroupEntries};
    for (std::size_t column = 0; column < kGroupEntries; column += kV * kLanes) {
      hn::Vec<FloatTag> total[kRows][kV];
      for (std::size_t r = 0; r < kRows; ++r)
        for (std::size_t v = 0; v < kV; ++v) total[r][v] = hn::Zero(d);
      for (std::size_t block = 0; block < head_dim / kBlockChannels; ++block) {
        hn::Vec<FloatTag> sum[kRows][kV];
        for (std::size_t r = 0; r < kRows; ++r)
          for (std::size_t v = 0; v < kV; ++v) sum[r][v] = hn::Zero(d);
        const std::size_t first = block * kBlockChannels;
        add_lines<kRows, kV>(queries, head_dim, first, first + kBlockChannels, b, column, ahead,
                             sum);
        for (std::size_t v = 0; v < kV; ++v) {
          const auto scale = scales(block, column + v * kLanes);
          for (std::size_t r = 0; r < kRows; ++r)
            total[r][v] = hn::MulAdd(sum[r][v], scale, total[r][v]);
        }
      }
      for (std::size_t r = 0; r < kRows; ++r)
        for (std::size_t v = 0; v < kV; ++v)
          hn::StoreU(total[r][v], d, z + r * z_stride + column + v * kLanes);
    }
  }

  // q.k = sum of (q scale) u + q.low: scale and low belong to the channel, so they go to the query.
  template <class Load>
  HWY_INLINE void q4(const Load& b, const std::uint8_t* group, float* scaled, Ahead& ahead) const {
    const FloatTag d;
    const auto* scales = reinterpret_cast<const Half*>(group);
    const auto* lows = scales + head_dim;
    hn::Vec<FloatTag> start[kRows];
    for (std::size_t r = 0; r < kRows; ++r) start[r] = hn::Zero(d);
    for (std::size_t c = 0; c < head_dim; c += kLanes) {
      const auto scale = load(d, scales + c);
      const auto low = load(d, lows + c);
      for (std::size_t r = 0; r < kRows; ++r) {
        const auto q = hn::LoadU(d, queries + r * head_dim + c);
        hn::StoreU(hn::Mul(q, scale), d, scaled + r * head_dim + c);
        start[r] = hn::MulAdd(q, low, start[r]);
      }
    }
    float base[kRows];
    for (std::size_t r = 0; r < kRows; ++r) base[r] = hn::GetLane(hn::SumOfLanes(d, start[r]));
    plain(b, scaled, base, ahead);
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

  // Channels [column, column + kVectors * kLanes), from the weights w [kRows, w_stride]; base is
  // added to each.
  template <std::size_t kVectors, class Load>
  HWY_INLINE void panel(const Load& b, const float* w, std::size_t w_stride, const float* base,
                        std::size_t column, Ahead& ahead) const {
    const FloatTag d;
    hn::Vec<FloatTag> sum[kRows][kVectors];
    for (std::size_t r = 0; r < kRows; ++r) {
      const auto start = hn::Set(d, base == nullptr ? 0.0f : base[r]);
      const auto factor = hn::Set(d, keep[r]);
      for (std::size_t v = 0; v < kVectors; ++v)
        sum[r][v] =
            hn::MulAdd(hn::LoadU(d, out + r * head_dim + column + v * kLanes), factor, start);
    }
    add_lines<kRows, kVectors>(w, w_stride, first, last, b, column, ahead, sum);
    for (std::size_t r = 0; r < kRows; ++r)
      for (std::size_t v = 0; v < kVectors; ++v)
        hn::StoreU(sum[r][v], d, out + r * head_dim + column + v * kLanes);
  }

  template <class Load>
  HWY_INLINE void f16(const Load& b, const std::uint8_t* group, Ahead& ahead) const {
    std::size_t column = 0;
    for (; column + kV * kLanes <= head_dim; column += kV * kLanes)
      panel<kV>(b, p, p_stride, nullptr, column, ahead);
    if constexpr (kV > 1)
      for (; column + kLanes <= head_dim; column += kLanes)
        panel<1>(b, p, p_stride, nullptr, column, ahead);
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

  template <class Load>
  HWY_INLINE void block(const Load& b, const float* w, const float* base, std::size_t block,
                        Ahead& ahead) const {
    constexpr std::size_t kPerBlock = kBlockChannels / kLanes;
    constexpr std::size_t kStep = kV < kPerBlock ? kV : kPerBlock;
    const std::size_t end = (block + 1) * kBlockChannels;
    for (std::size_t column = block * kBlockChannels; column < end; column += kStep * kLanes)
      panel<kStep>(b, w, kGroupEntries, base, column, ahead);
  }

  // w[r][i] = p[r][i] * scale[i] for the entries of the group. scales holds n numbers.
  HWY_INLINE void weigh(const std::uint8_t* scales, float* w) const {
    const FloatTag d;
    float scale[kGroupEntries] = {};
    read(scales, scale);
    for (std::size_t i = 0; i < kGroupEntries; i += kLanes) {
      const auto s = hn::LoadU(d, scale + i);
      for (std::size_t r = 0; r < kRows; ++r)
        hn::StoreU(hn::Mul(hn::LoadU(d, p + r * p_stride + i), s), d, w + r * kGroupEntries + i);
    }
  }

  HWY_INLINE void read(const std::uint8_t* from, float* to) const {
    const FloatTag d;
    const auto* numbers = reinterpret_cast<const Half*>(from);
    std::size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) hn::StoreU(load(d, numbers + i), d, to + i);
    for (; i < n; ++i) to[i] = to_float(numbers[i]);
  }

  template <class Load>
  HWY_INLINE void q8(const Load& codes, const std::uint8_t* group, float* w, Ahead& ahead) const {
    const std::uint8_t* scales = group + n * head_dim;
    for (std::size_t b = 0; b < head_dim / kBlockChannels; ++b) {
      weigh(scales + b * n * sizeof(Half), w);
      block(codes, w, nullptr, b, ahead);
    }
  }

  // The lows of the entries add the same to every channel of a block.
  template <class Load>
  HWY_INLINE void q4(const Load& codes, const std::uint8_t* group, float* w, Ahead& ahead) const {
    const std::size_t n_blocks = head_dim / kBlockChannels;
    const std::uint8_t* scales = group + n * head_dim / 2;
    const std::uint8_t* lows = scales + n_blocks * n * sizeof(Half);
    for (std::size_t b = 0; b < n_blocks; ++b) {
      weigh(scales + b * n * sizeof(Half), w);
      float low[kGroupEntries] = {};
      read(lows + b * n * sizeof(Half), low);
      float base[kRows];
      for (std::size_t r = 0; r < kRows; ++r) {
        const FloatTag d;
        auto sum = hn::Zero(d);
        for (std::size_t i = 0; i < kGroupEntries; i += kLanes)
          sum = hn::MulAdd(hn::LoadU(d, p + r * p_stride + i), hn::LoadU(d, low + i), sum);
        base[r] = hn::GetLane(hn::SumOfLanes(d, sum));
      }
      block(codes, w, base, b, ahead);
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
