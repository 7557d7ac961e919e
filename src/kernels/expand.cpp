#include "kernels/expand.h"

#include <cstdint>
#include <cstring>

#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/expand.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace precis {
namespace HWY_NAMESPACE {

// At most 16 lanes, so that a vector never crosses the halves of a block.
using Floats = hn::CappedTag<float, 16>;
using Ints = hn::RebindToSigned<Floats>;
constexpr std::size_t kWeights = 32;  // in a block of all formats but q6_K

inline float half_at(const std::uint8_t* bytes) {
  Half half;
  std::memcpy(&half.bits, bytes, sizeof half.bits);
  return to_float(half);
}

// 16 bytes -> 16 low nibbles, then 16 high ones.
HWY_INLINE void split_nibbles(const std::uint8_t* from, std::uint8_t* to) {
#if HWY_TARGET == HWY_SCALAR
  for (std::size_t i = 0; i < 16; ++i) {
    to[i] = from[i] & 15;
    to[16 + i] = static_cast<std::uint8_t>(from[i] >> 4);
  }
#else
  const hn::Full128<std::uint8_t> d;
  const hn::Full128<std::uint16_t> d16;
  const auto bytes = hn::LoadU(d, from);
  const auto mask = hn::Set(d, 15);
  const auto shifted = hn::BitCast(d, hn::ShiftRight<4>(hn::BitCast(d16, bytes)));
  hn::StoreU(hn::And(bytes, mask), d, to);
  hn::StoreU(hn::And(shifted, mask), d, to + 16);
#endif
}

// One vector of bytes as integers.
template <class Byte>
HWY_INLINE hn::Vec<Ints> widen(const Byte* bytes) {
  const hn::Rebind<Byte, Ints> d8;
  return hn::PromoteTo(Ints(), hn::LoadU(d8, bytes));
}

// kMinimum: w = scale * q + minimum, else w = scale * (q - middle). Products are exact: a scale has
// 11 bits, q at most 8.
template <bool kFifthBit, bool kMinimum>
HWY_INLINE void expand_nibbles(const std::uint8_t* block, std::size_t n, float* out) {
  constexpr std::size_t kNibblesAt = 2 + (kMinimum ? 2 : 0) + (kFifthBit ? 4 : 0);
  const Floats d;
  const Ints di;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t b = 0; b < n; b += kWeights, block += kNibblesAt + 16) {
    const auto scale = hn::Set(d, half_at(block));
    const auto minimum = hn::Set(d, kMinimum ? half_at(block + 2) : 0.0f);
    std::uint32_t fifth = 0;
    if constexpr (kFifthBit) std::memcpy(&fifth, block + kNibblesAt - 4, sizeof fifth);
    HWY_ALIGN std::uint8_t nibbles[kWeights];
    split_nibbles(block + kNibblesAt, nibbles);
    for (std::size_t i = 0; i < kWeights; i += lanes) {
      auto q = widen(nibbles + i);
      if constexpr (kFifthBit) {
        const auto bit = hn::Set(di, static_cast<std::int32_t>(fifth >> i));
        const auto one = hn::And(hn::Shr(bit, hn::Iota(di, 0)), hn::Set(di, 1));
        q = hn::Or(q, hn::ShiftLeft<4>(one));
      }
      if constexpr (!kMinimum) q = hn::Sub(q, hn::Set(di, kFifthBit ? 16 : 8));
      auto w = hn::Mul(hn::ConvertTo(d, q), scale);
      if constexpr (kMinimum) w = hn::Add(w, minimum);
      hn::StoreU(w, d, out + b + i);
    }
  }
}

HWY_INLINE void expand_bytes(const std::uint8_t* block, std::size_t n, float* out) {
  const Floats d;
  for (std::size_t b = 0; b < n; b += kWeights, block += 2 + kWeights) {
    const auto scale = hn::Set(d, half_at(block));
    const auto* q = reinterpret_cast<const std::int8_t*>(block + 2);
    for (std::size_t i = 0; i < kWeights; i += hn::Lanes(d))
      hn::StoreU(hn::Mul(hn::ConvertTo(d, widen(q + i)), scale), d, out + b + i);
  }
}

// Each half of a block: weights 32 j + i (j < 4, i < 32) have their low bits in nibble j / 2 of
// byte 32 (j % 2) + i and their high ones in pair j of byte i of `high`; 16 weights share a scale.
HWY_INLINE void expand_q6_k(const std::uint8_t* block, std::size_t n, float* out) {
  constexpr std::size_t kBlock = 256, kHalf = 128;
  constexpr std::size_t kHighAt = 128, kScalesAt = 192, kScaleAt = 208, kBytes = 210;
  const Floats d;
  const Ints di;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t b = 0; b < n; b += kBlock, block += kBytes) {
    const float scale = half_at(block + kScaleAt);
    for (std::size_t h = 0; h < 2; ++h) {
      const std::uint8_t* low = block + 64 * h;
      const std::uint8_t* high = block + kHighAt + 32 * h;
      const auto* scales = reinterpret_cast<const std::int8_t*>(block + kScalesAt + 8 * h);
      for (std::size_t i = 0; i < 32; i += lanes) {
        const auto low0 = widen(low + i);
        const auto low1 = widen(low + 32 + i);
        const auto pairs = widen(high + i);
        const auto nibble = hn::Set(di, 15);
        const auto two = hn::Set(di, 0x30);
        const hn::Vec<Ints> q[4] = {
            hn::Or(hn::And(low0, nibble), hn::And(hn::ShiftLeft<4>(pairs), two)),
            hn::Or(hn::And(low1, nibble), hn::And(hn::ShiftLeft<2>(pairs), two)),
            hn::Or(hn::ShiftRight<4>(low0), hn::And(pairs, two)),
            hn::Or(hn::ShiftRight<4>(low1), hn::And(hn::ShiftRight<2>(pairs), two))};
        for (std::size_t j = 0; j < 4; ++j) {
          const float own = scale * static_cast<float>(scales[2 * j + i / 16]);
          const auto centred = hn::ConvertTo(d, hn::Sub(q[j], hn::Set(di, 32)));
          hn::StoreU(hn::Mul(centred, hn::Set(d, own)), d, out + b + kHalf * h + 32 * j + i);
        }
      }
    }
  }
}

void expand_blocks(BlockFormat format, const void* blocks, std::size_t n, float* out) {
  const auto* block = static_cast<const std::uint8_t*>(blocks);
  switch (format) {
    case BlockFormat::kQ4_0:
      return expand_nibbles<false, false>(block, n, out);
    case BlockFormat::kQ4_1:
      return expand_nibbles<false, true>(block, n, out);
    case BlockFormat::kQ5_0:
      return expand_nibbles<true, false>(block, n, out);
    case BlockFormat::kQ5_1:
      return expand_nibbles<true, true>(block, n, out);
    case BlockFormat::kQ8_0:
      return expand_bytes(block, n, out);
    case BlockFormat::kQ6_K:
      return expand_q6_k(block, n, out);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace precis
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace precis {

HWY_EXPORT(expand_blocks);

void expand_blocks(BlockFormat format, const void* blocks, std::size_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(expand_blocks)(format, blocks, n, out);
}

}  // namespace precis
#endif  // HWY_ONCE
