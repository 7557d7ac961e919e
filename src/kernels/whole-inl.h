// Sums of products of whole numbers, codes of quantised rows times codes of the other factor, for
// 32 lines (channels of keys, entries of values) and some columns (entries, channels). Where the
// processor multiplies and adds small whole numbers in one instruction (x86) that is used;
// elsewhere they are multiplied as f32. The sums are the same: all stay below 2^24, which f32 holds
// exactly in any order. Included once per target.
#if defined(PRECIS_KERNELS_WHOLE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PRECIS_KERNELS_WHOLE_INL_H_
#undef PRECIS_KERNELS_WHOLE_INL_H_
#else
#define PRECIS_KERNELS_WHOLE_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/packed-inl.h"

#undef PRECIS_WHOLE_PRODUCTS
#if HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
#define PRECIS_WHOLE_PRODUCTS 1
#else
#define PRECIS_WHOLE_PRODUCTS 0
#endif

HWY_BEFORE_NAMESPACE();
namespace precis {
namespace HWY_NAMESPACE {

constexpr bool kWholeProducts = PRECIS_WHOLE_PRODUCTS != 0;

// Largest code of the factor that meets rows of q8_0 and of q4. 4095 * 127 * 32 < 2^24; a lane of
// 16 bits gets 8 sums of two products of q4, 8 * 2 * 127 * 15 < 2^15.
constexpr float kMostLong = 4095.0f;
constexpr float kMostShort = 127.0f;

using WholeTag = hn::RebindToSigned<FloatTag>;

constexpr std::size_t kHalfBlock = kBlockChannels / 2;

#if PRECIS_WHOLE_PRODUCTS

using LongCode = std::int16_t;
using ShortCode = std::int8_t;

using ShortTag = hn::Repartition<std::int16_t, FloatTag>;
using SignedTag = hn::Repartition<std::int8_t, FloatTag>;
using ByteTag = hn::Repartition<std::uint8_t, FloatTag>;

// Sums of two neighbouring products: i16 * i16 to i32, and u8 * i8 to i16.
HWY_INLINE hn::Vec<WholeTag> multiply_pairs(hn::Vec<ShortTag> a, hn::Vec<ShortTag> b) {
#if HWY_TARGET == HWY_SSE4
  return hn::Vec<WholeTag>{_mm_madd_epi16(a.raw, b.raw)};
#elif HWY_TARGET == HWY_AVX2
  return hn::Vec<WholeTag>{_mm256_madd_epi16(a.raw, b.raw)};
#else
  return hn::Vec<WholeTag>{_mm512_madd_epi16(a.raw, b.raw)};
#endif
}

HWY_INLINE hn::Vec<ShortTag> multiply_pairs(hn::Vec<ByteTag> a, hn::Vec<SignedTag> b) {
#if HWY_TARGET == HWY_SSE4
  return hn::Vec<ShortTag>{_mm_maddubs_epi16(a.raw, b.raw)};
#elif HWY_TARGET == HWY_AVX2
  return hn::Vec<ShortTag>{_mm256_maddubs_epi16(a.raw, b.raw)};
#else
  return hn::Vec<ShortTag>{_mm512_maddubs_epi16(a.raw, b.raw)};
#endif
}

// The 4 bytes at `from` in every lane of 32 bits.
template <class D>
HWY_INLINE hn::Vec<D> repeat(D d, const void* from) {
  std::int32_t bits;
  std::memcpy(&bits, from, sizeof bits);
  return hn::BitCast(d, hn::Set(WholeTag(), bits));
}

// Adds in the order of the source. Left alone, GCC turns a chain of additions of whole numbers into
// a tree, whose products in waiting do not fit the registers: 10 to 15 % slower.
template <class V>
HWY_INLINE void add_now(V& sum, V product) {
  auto raw = hn::Add(sum, product).raw;
  asm("" : "+v"(raw));
  sum = V{raw};
}

template <std::size_t kRows, std::size_t kV>
HWY_INLINE void sum_twos(const std::uint8_t* HWY_RESTRICT codes, std::size_t stride,
                         const LongCode* HWY_RESTRICT a, std::size_t a_stride, Ahead& ahead,
                         hn::Vec<FloatTag> (&sum)[kRows][kV]) {
  const WholeTag d;
  const ShortTag d16;
  const hn::Rebind<std::int8_t, ShortTag> d8;
  hn::Vec<WholeTag> whole[kRows][kV];
  for (std::size_t r = 0; r < kRows; ++r)
    for (std::size_t v = 0; v < kV; ++v) whole[r][v] = hn::Zero(d);
  HWY_UNROLL(4)
  for (std::size_t two = 0; two < kBlockChannels / 2; ++two) {
    ahead.step();
    const auto* at = reinterpret_cast<const std::int8_t*>(codes + two * stride);
    HWY_UNROLL(4)
    for (std::size_t v = 0; v < kV; ++v) {
      const auto x = hn::PromoteTo(d16, hn::LoadU(d8, at + v * 2 * kLanes));
      HWY_UNROLL(8)
      for (std::size_t r = 0; r < kRows; ++r)
        add_now(whole[r][v], multiply_pairs(x, repeat(d16, a + r * a_stride + 2 * two)));
    }
  }
  for (std::size_t r = 0; r < kRows; ++r)
    for (std::size_t v = 0; v < kV; ++v) sum[r][v] = hn::ConvertTo(FloatTag(), whole[r][v]);
}

struct Nibbles {
  hn::Vec<ByteTag> low;
  hn::Vec<ByteTag> high;
  HWY_INLINE explicit Nibbles(const std::uint8_t* from) {
    const ByteTag d;
    const hn::Repartition<std::uint16_t, FloatTag> d16;
    const auto mask = hn::Set(d, std::uint8_t{15});
    const auto bytes = hn::LoadU(d, from);
    low = hn::And(bytes, mask);
    high = hn::And(hn::BitCast(d, hn::ShiftRight<4>(hn::BitCast(d16, bytes))), mask);
  }
};

HWY_INLINE hn::Vec<FloatTag> widen(hn::Vec<ShortTag> pairs) {
  return hn::ConvertTo(FloatTag(), multiply_pairs(pairs, hn::Set(ShortTag(), 1)));
}

// Keys: both halves of a byte belong to the column. Codes of a block, from its first column on.
template <std::size_t kRows, std::size_t kV>
HWY_INLINE void sum_fours_down(const std::uint8_t* HWY_RESTRICT codes, std::size_t stride,
                               const ShortCode* HWY_RESTRICT a, std::size_t a_stride, Ahead& ahead,
                               hn::Vec<FloatTag> (&sum)[kRows][kV]) {
  const ShortTag d16;
  const SignedTag d8;
  hn::Vec<ShortTag> pairs[kRows][kV];
  for (std::size_t r = 0; r < kRows; ++r)
    for (std::size_t v = 0; v < kV; ++v) pairs[r][v] = hn::Zero(d16);
  HWY_UNROLL(4)
  for (std::size_t four = 0; four < kHalfBlock / 4; ++four) {
    const ShortCode* factor = a + 4 * four;
    HWY_UNROLL(4)
    for (std::size_t v = 0; v < kV; ++v) {
      ahead.step();
      const Nibbles x(codes + four * stride + v * 4 * kLanes);
      HWY_UNROLL(8)
      for (std::size_t r = 0; r < kRows; ++r)
        add_now(pairs[r][v], multiply_pairs(x.low, repeat(d8, factor + r * a_stride)));
      HWY_UNROLL(8)
      for (std::size_t r = 0; r < kRows; ++r)
        add_now(pairs[r][v],
                multiply_pairs(x.high, repeat(d8, factor + r * a_stride + kHalfBlock)));
    }
  }
  for (std::size_t r = 0; r < kRows; ++r)
    for (std::size_t v = 0; v < kV; ++v) sum[r][v] = widen(pairs[r][v]);
}

// Values: the halves of a byte belong to columns 16 apart.
template <std::size_t kRows>
HWY_INLINE void sum_fours_across(const std::uint8_t* HWY_RESTRICT codes, std::size_t stride,
                                 const ShortCode* HWY_RESTRICT a, std::size_t a_stride,
                                 Ahead& ahead, hn::Vec<FloatTag> (&sum)[kRows][2]) {
  const ShortTag d16;
  const SignedTag d8;
  hn::Vec<ShortTag> low[kRows], high[kRows];
  for (std::size_t r = 0; r < kRows; ++r) low[r] = high[r] = hn::Zero(d16);
  HWY_UNROLL(4)
  for (std::size_t four = 0; four < kGroupEntries / 4; ++four) {
    ahead.step();
    if (kLanes == 16) ahead.step();
    const Nibbles x(codes + four * stride);
    HWY_UNROLL(8)
    for (std::size_t r = 0; r < kRows; ++r) {
      const auto factor = repeat(d8, a + r * a_stride + 4 * four);
      add_now(low[r], multiply_pairs(x.low, factor));
      add_now(high[r], multiply_pairs(x.high, factor));
    }
  }
  for (std::size_t r = 0; r < kRows; ++r) {
    sum[r][0] = widen(low[r]);
    sum[r][1] = widen(high[r]);
  }
}

// Vectors of columns that are summed at a time: enough sums to hide latency, few enough for the
// registers. Measured on Zen 1 for groups of 1, 3, 4 and 7.
template <std::size_t kRows>
constexpr std::size_t vectors_of_twos() {
  return std::min<std::size_t>(kBlockChannels / kLanes, kRows == 1 ? 4 : kRows <= 4 ? 2 : 1);
}

template <std::size_t kRows>
constexpr std::size_t vectors_of_fours() {
  return std::min<std::size_t>(kGroupEntries / kLanes, kRows == 1 ? 4 : kRows == 2 ? 2 : 1);
}

// The four kinds of codes. sums(a, a_stride, block, column, ...): a are the codes of the other
// factor from the block's first line on; sum[r][v] belongs to column + v * kApart. Columns of a
// block end at kColumns.
struct KeyBytes {
  using Code = LongCode;
  static constexpr std::size_t kApart = kLanes;
  static constexpr std::size_t kColumns = kGroupEntries;
  template <std::size_t kRows>
  static constexpr std::size_t vectors() {
    return vectors_of_twos<kRows>();
  }
  const std::uint8_t* codes;
  template <std::size_t kRows, std::size_t kV>
  HWY_INLINE void sums(const Code* a, std::size_t a_stride, std::size_t block, std::size_t column,
                       Ahead& ahead, hn::Vec<FloatTag> (&sum)[kRows][kV]) const {
    sum_twos(codes + (block * kHalfBlock * kGroupEntries + column) * 2, 2 * kGroupEntries, a,
             a_stride, ahead, sum);
  }
};

struct ValueBytes {
  using Code = LongCode;
  static constexpr std::size_t kApart = kLanes;
  static constexpr std::size_t kColumns = kBlockChannels;
  template <std::size_t kRows>
  static constexpr std::size_t vectors() {
    return vectors_of_twos<kRows>();
  }
  const std::uint8_t* codes;
  std::size_t head_dim;
  template <std::size_t kRows, std::size_t kV>
  HWY_INLINE void sums(const Code* a, std::size_t a_stride, std::size_t block, std::size_t column,
                       Ahead& ahead, hn::Vec<FloatTag> (&sum)[kRows][kV]) const {
    sum_twos(codes + (block * kBlockChannels + column) * 2, 2 * head_dim, a, a_stride, ahead, sum);
  }
};

struct KeyNibbles {
  using Code = ShortCode;
  static constexpr std::size_t kApart = kLanes;
  static constexpr std::size_t kColumns = kGroupEntries;
  template <std::size_t kRows>
  static constexpr std::size_t vectors() {
    return vectors_of_fours<kRows>();
  }
  const std::uint8_t* codes;
  template <std::size_t kRows, std::size_t kV>
  HWY_INLINE void sums(const Code* a, std::size_t a_stride, std::size_t block, std::size_t column,
                       Ahead& ahead, hn::Vec<FloatTag> (&sum)[kRows][kV]) const {
    sum_fours_down(codes + (block * 4 * kGroupEntries + column) * 4, 4 * kGroupEntries, a, a_stride,
                   ahead, sum);
  }
};

struct ValueNibbles {
  using Code = ShortCode;
  static constexpr std::size_t kApart = kHalfBlock;
  static constexpr std::size_t kColumns = kHalfBlock;
  template <std::size_t kRows>
  static constexpr std::size_t vectors() {
    return 2;
  }
  const std::uint8_t* codes;
  std::size_t head_dim;
  template <std::size_t kRows>
  HWY_INLINE void sums(const Code* a, std::size_t a_stride, std::size_t block, std::size_t column,
                       Ahead& ahead, hn::Vec<FloatTag> (&sum)[kRows][2]) const {
    sum_fours_across(codes + (block * kHalfBlock + column) * 4, 2 * head_dim, a, a_stride, ahead,
                     sum);
  }
};

#else  // PRECIS_WHOLE_PRODUCTS

using LongCode = float;
using ShortCode = float;

// kLanes bytes or halves of bytes from every second or fourth byte on, as f32.
HWY_INLINE hn::Vec<FloatTag> every_second(const std::uint8_t* from, std::size_t which) {
  const FloatTag d;
  const hn::Rebind<std::int16_t, FloatTag> d16;
  const auto twos = hn::LoadU(d16, reinterpret_cast<const std::int16_t*>(from));
  const auto bytes = hn::ShiftRight<8>(which == 0 ? hn::ShiftLeft<8>(twos) : twos);
  return hn::ConvertTo(d, hn::PromoteTo(hn::RebindToSigned<FloatTag>(), bytes));
}

HWY_INLINE hn::Vec<FloatTag> every_fourth(const std::uint8_t* from, std::size_t which, bool high) {
  const hn::RebindToUnsigned<FloatTag> du;
  const auto fours = hn::LoadU(du, reinterpret_cast<const std::uint32_t*>(from));
  const auto code = hn::And(hn::ShiftRightSame(fours, static_cast<int>(8 * which + (high ? 4 : 0))),
                            hn::Set(du, 15u));
  return hn::ConvertTo(FloatTag(), hn::BitCast(hn::RebindToSigned<FloatTag>(), code));
}

// Kinds of codes as above, by a function of line (of the group) and column that gives f32.
template <class Numbers>
struct FloatCodes {
  using Code = float;
  static constexpr std::size_t kApart = kLanes;
  static constexpr std::size_t kColumns = kBlockChannels;
  template <std::size_t kRows>
  static constexpr std::size_t vectors() {
    return packed_vectors<kRows>();
  }
  Numbers numbers;
  template <std::size_t kRows, std::size_t kV>
  HWY_INLINE void sums(const float* a, std::size_t a_stride, std::size_t block, std::size_t column,
                       Ahead& ahead, hn::Vec<FloatTag> (&sum)[kRows][kV]) const {
    for (std::size_t r = 0; r < kRows; ++r)
      for (std::size_t v = 0; v < kV; ++v) sum[r][v] = hn::Zero(FloatTag());
    const auto in_block = [&](std::size_t line, std::size_t at)
                              HWY_ATTR { return numbers(block, line, at); };
    add_lines<kRows, kV>(a, a_stride, 0, kBlockChannels, in_block, column, ahead, sum);
  }
};

struct KeyByteNumbers {
  const std::uint8_t* codes;
  HWY_INLINE hn::Vec<FloatTag> operator()(std::size_t block, std::size_t channel,
                                          std::size_t entry) const {
    const std::size_t two = block * kHalfBlock + channel / 2;
    return every_second(codes + (two * kGroupEntries + entry) * 2, channel % 2);
  }
};

struct ValueByteNumbers {
  const std::uint8_t* codes;
  std::size_t head_dim;
  HWY_INLINE hn::Vec<FloatTag> operator()(std::size_t block, std::size_t entry,
                                          std::size_t channel) const {
    const std::size_t column = block * kBlockChannels + channel;
    return every_second(codes + (entry / 2 * head_dim + column) * 2, entry % 2);
  }
};

struct KeyNibbleNumbers {
  const std::uint8_t* codes;
  HWY_INLINE hn::Vec<FloatTag> operator()(std::size_t block, std::size_t channel,
                                          std::size_t entry) const {
    const std::size_t four = block * 4 + channel % kHalfBlock / 4;
    return every_fourth(codes + (four * kGroupEntries + entry) * 4, channel % 4,
                        channel >= kHalfBlock);
  }
};

struct ValueNibbleNumbers {
  const std::uint8_t* codes;
  std::size_t head_dim;
  HWY_INLINE hn::Vec<FloatTag> operator()(std::size_t block, std::size_t entry,
                                          std::size_t channel) const {
    const std::size_t column = block * kHalfBlock + channel % kHalfBlock;
    return every_fourth(codes + (entry / 4 * (head_dim / 2) + column) * 4, entry % 4,
                        channel >= kHalfBlock);
  }
};

using KeyBytes = FloatCodes<KeyByteNumbers>;
using ValueBytes = FloatCodes<ValueByteNumbers>;
using KeyNibbles = FloatCodes<KeyNibbleNumbers>;
using ValueNibbles = FloatCodes<ValueNibbleNumbers>;

#endif  // PRECIS_WHOLE_PRODUCTS

}  // namespace HWY_NAMESPACE
}  // namespace precis
HWY_AFTER_NAMESPACE();

#endif  // include guard
