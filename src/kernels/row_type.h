// How rows of keys and values are stored in a frozen cache, and what that costs.
//
// Entries come in groups of 32 (the last group of a list may be shorter). A group of w entries of
// head_dim d is stored as follows, with nb = d / 32 blocks of channels; every number is in place,
// nothing is padded:
//
//   type  keys: channels outside, entries inside      values: entries outside, channels inside
//   f16   f16 [d, w]                                  f16 [w, d]
//   q8_0  i8 [d / 2, w, 2], f16 scale [nb, w]         i8 [w / 2, d, 2], f16 scale [nb, w]
//   q4    f16 scale [d], f16 low [d],                 u4 [w / 4, nb, 16, 4], f16 scale [nb, w],
//         u4 [nb, 4, w, 4]                            f16 low [nb, w]
//
// q8_0: x = scale * i, |i| <= 127, one scale for 32 channels of an entry (as in llama.cpp's format
// of that name). q4: x = low + scale * u, u in 0..15; keys per channel over the entries of the
// group, values per entry over 32 channels (KIVI, arXiv 2402.02750): key channels differ in size by
// orders of magnitude and keep their size from token to token, values do neither. Scales are not
// negative.
//
// What is summed lies side by side, as the processors' products of small whole numbers take it:
// channels of keys, entries of values, in twos (q8_0) and fours (q4). The last w % 2 or w % 4
// entries of values lie side by side as well: [d, 1] or [nb, 16, w % 4]. A byte of q4 holds two u4,
// of channels c (low half) and c + 16 (high half) of a block: of keys, byte (block, f, entry, j)
// those with c = 4 f + j; of values, byte (f, block, c, j) those of entry 4 f + j.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace precis {

enum class RowType : std::uint8_t { kF16, kQ8_0, kQ4 };

constexpr std::size_t kGroupEntries = 32;
// Channels that share a scale. Quantised rows need head_dim to be a multiple.
constexpr std::size_t kBlockChannels = 32;

// Types of keys and of values.
struct RowTypes {
  RowType keys = RowType::kF16;
  RowType values = RowType::kF16;
  friend bool operator==(const RowTypes&, const RowTypes&) = default;
};

// "f16", "q8_0", "q4".
const char* row_type_name(RowType type);
// The names separated by ", ".
std::string row_type_names();
std::optional<RowType> find_row_type(std::string_view name);

// Whether rows of head_dim channels can be stored so.
constexpr bool fits(RowType type, std::size_t head_dim) {
  return type == RowType::kF16 || head_dim % kBlockChannels == 0;
}

// Bytes of the keys, and of the values, of one list of n entries.
std::size_t key_bytes(RowType type, std::size_t head_dim, std::size_t n);
std::size_t value_bytes(RowType type, std::size_t head_dim, std::size_t n);
inline std::size_t row_bytes(const RowTypes& types, std::size_t head_dim, std::size_t n) {
  return key_bytes(types.keys, head_dim, n) + value_bytes(types.values, head_dim, n);
}
// Most bytes that lists of n entries in total can take when cut into n_lists lists.
inline std::size_t most_row_bytes(const RowTypes& types, std::size_t head_dim, std::size_t n,
                                  std::size_t n_lists) {
  // Only groups of q4 keys cost something whatever their size: at most one more per list.
  const std::size_t extra = types.keys == RowType::kQ4 ? key_bytes(RowType::kQ4, head_dim, 1) : 0;
  return row_bytes(types, head_dim, n) + n_lists * extra;
}

}  // namespace precis
