#include "kernels/row_check.h"

#include <algorithm>
#include <bit>

namespace precis {
namespace {

constexpr std::uint16_t kMagnitude = 0x7fff;
constexpr std::uint16_t kInfinity = 0x7c00;
constexpr std::uint16_t kMinusZero = 0x8000;

const Half* halves(const std::uint8_t* bytes) { return reinterpret_cast<const Half*>(bytes); }

// Both loops have no way out in the middle, so that compilers make vectors of them.
bool are_scales(const Half* numbers, std::size_t n) {
  std::uint16_t largest = 0;
  for (std::size_t i = 0; i < n; ++i) {
    // Rounding a tiny negative scale to f16 gives minus zero.
    const std::uint16_t bits = numbers[i].bits == kMinusZero ? std::uint16_t{0} : numbers[i].bits;
    largest = std::max(largest, bits);
  }
  return largest < kInfinity;
}

bool are_q8_codes(const std::uint8_t* codes, std::size_t n) {
  constexpr std::uint8_t kLowest = 0x80;  // -128
  bool found = false;
  for (std::size_t i = 0; i < n; ++i) found |= codes[i] == kLowest;
  return !found;
}

// Calls sound(group, entries) for each group of a list.
template <class Sound, class Bytes>
bool all_groups(const std::uint8_t* rows, std::size_t n, Bytes bytes, Sound sound) {
  for (std::size_t i = 0; i < n; i += kGroupEntries)
    if (!sound(rows + bytes(i), std::min(kGroupEntries, n - i))) return false;
  return true;
}

// q8_0: keys and values differ in the order of the codes only.
bool is_sound_q8(const std::uint8_t* group, std::size_t d, std::size_t w) {
  return are_q8_codes(group, d * w) && are_scales(halves(group + d * w), d / kBlockChannels * w);
}

}  // namespace

bool all_finite(const Half* numbers, std::size_t n) {
  std::uint16_t largest = 0;
  for (std::size_t i = 0; i < n; ++i)
    largest = std::max<std::uint16_t>(largest, numbers[i].bits & kMagnitude);
  return largest < kInfinity;
}

bool all_finite(const float* numbers, std::size_t n) {
  constexpr std::uint32_t kFloatInfinity = 0x7f800000;
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < n; ++i)
    largest = std::max(largest, std::bit_cast<std::uint32_t>(numbers[i]) & 0x7fffffff);
  return largest < kFloatInfinity;
}

bool are_sound_keys(RowType type, const std::uint8_t* keys, std::size_t d, std::size_t n) {
  if (type == RowType::kF16) return all_finite(halves(keys), n * d);
  const auto bytes = [&](std::size_t i) { return key_bytes(type, d, i); };
  return all_groups(keys, n, bytes, [&](const std::uint8_t* group, std::size_t w) {
    if (type == RowType::kQ8_0) return is_sound_q8(group, d, w);
    return are_scales(halves(group), d) && all_finite(halves(group) + d, d);
  });
}

bool are_sound_values(RowType type, const std::uint8_t* values, std::size_t d, std::size_t n) {
  if (type == RowType::kF16) return all_finite(halves(values), n * d);
  const auto bytes = [&](std::size_t i) { return value_bytes(type, d, i); };
  return all_groups(values, n, bytes, [&](const std::uint8_t* group, std::size_t w) {
    if (type == RowType::kQ8_0) return is_sound_q8(group, d, w);
    const std::size_t n_scales = d / kBlockChannels * w;
    const Half* scales = halves(group + d / 2 * w);
    return are_scales(scales, n_scales) && all_finite(scales + n_scales, n_scales);
  });
}

}  // namespace precis
