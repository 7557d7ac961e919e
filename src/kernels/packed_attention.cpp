#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/packed_rows.h"
#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/packed_attention.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/packed-inl.h"

HWY_BEFORE_NAMESPACE();
namespace precis {
namespace HWY_NAMESPACE {

constexpr std::size_t kGroupsPerBlock = kBlock / kGroupEntries;
// Up to this many rows convert entries as they load them; of more, 6 at a time share a block that
// was expanded to f32.
constexpr std::size_t kMostDirectRows = kMaxRows;
constexpr std::size_t kExpandedRows = 6;

// Everything about a call that does not change from block to block.
struct PackedCall {
  const QueryView& queries;
  const PackedView& entries;
  const LogitRule& rule;
  const Visible* visible;
  const StateView& state;
  float* rows;           // [n_rows, head_dim] packed queries
  float* z;              // [kMaxRows, kBlock]
  float* bias;           // [kBlock]
  float* scaled;         // [kMaxRows, head_dim] queries times scales of q4 keys
  float* weights;        // [kMaxRows, kGroupEntries]
  std::uint8_t* padded;  // a full group of keys
  float* expanded;       // a block's keys, then its values: 2 x [kBlock, head_dim]; or null

  float* expanded_keys(std::size_t g) const {
    return expanded + g * kGroupEntries * queries.head_dim;
  }
  float* expanded_values(std::size_t g) const {
    return expanded + (kBlock + g * kGroupEntries) * queries.head_dim;
  }

  const std::uint8_t* key_group(std::size_t start) const {
    return entries.keys + key_bytes(entries.types.keys, queries.head_dim, start);
  }
  const std::uint8_t* value_group(std::size_t start) const {
    return entries.values + value_bytes(entries.types.values, queries.head_dim, start);
  }
};

// The last group of a list as a full one: the loops over keys know no other. What is added is
// hidden.
inline void pad_keys(const PackedCall& call, const std::uint8_t* group, std::size_t n) {
  const std::size_t d = call.queries.head_dim;
  const RowType type = call.entries.types.keys;
  std::uint8_t* to = call.padded;
  std::memset(to, 0, key_bytes(type, d, kGroupEntries));
  if (type == RowType::kQ4) {
    const std::size_t header = 2 * d * sizeof(Half);
    std::memcpy(to, group, header);
    const std::size_t half = (n + 1) / 2;
    constexpr std::size_t kHalf = kGroupEntries / 2;
    for (std::size_t c = 0; c < d; ++c) {
      const std::uint8_t* from = group + header + c * half;
      std::uint8_t* line = to + header + c * kHalf;
      for (std::size_t i = 0; i < n; ++i) {
        const unsigned code = i < half ? from[i] & 15u : static_cast<unsigned>(from[i - half] >> 4);
        std::uint8_t& byte = line[i % kHalf];
        byte = static_cast<std::uint8_t>(byte | (i < kHalf ? code : code << 4));
      }
    }
    return;
  }
  const std::size_t size = type == RowType::kF16 ? sizeof(Half) : 1;
  for (std::size_t c = 0; c < d; ++c)
    std::memcpy(to + c * kGroupEntries * size, group + c * n * size, n * size);
  if (type == RowType::kF16) return;
  for (std::size_t b = 0; b < d / kBlockChannels; ++b)
    std::memcpy(to + (d + b * sizeof(Half)) * kGroupEntries, group + (d + b * sizeof(Half)) * n,
                n * sizeof(Half));
}

struct PackedBlock {
  std::size_t start = 0;
  const std::uint8_t* keys[kGroupsPerBlock];
  const std::uint8_t* values[kGroupsPerBlock];
  std::size_t n[kGroupsPerBlock];
  Ahead own_values;
  Ahead next_keys;
};

inline Ahead ahead_of(const std::uint8_t* from, const std::uint8_t* to) {
  return {from, (static_cast<std::size_t>(to - from) + kLine - 1) / kLine};
}

inline PackedBlock prepare_packed(const PackedCall& call, std::size_t start) {
  const std::size_t n = call.entries.n;
  PackedBlock block;
  block.start = start;
  for (std::size_t g = 0; g < kGroupsPerBlock; ++g) {
    const std::size_t first = std::min(n, start + g * kGroupEntries);
    block.n[g] = std::min(kGroupEntries, n - first);
    block.keys[g] = call.key_group(first);
    block.values[g] = call.value_group(first);
    if (block.n[g] > 0 && block.n[g] < kGroupEntries) {
      pad_keys(call, block.keys[g], block.n[g]);
      block.keys[g] = call.padded;
    }
  }
  const std::size_t next = std::min(n, start + kBlock);
  block.own_values = ahead_of(call.value_group(start), call.value_group(next));
  block.next_keys = ahead_of(call.key_group(next), call.key_group(std::min(n, next + kBlock)));
  const std::size_t filled = next - start;
  for (std::size_t j = 0; j < filled; ++j)
    call.bias[j] = call.entries.bias == nullptr ? 0.0f : call.entries.bias[start + j];
  std::fill(call.bias + filled, call.bias + kBlock, kMinusInfinity);
  return block;
}

inline NibbleLoader key_codes(const PackedCall& call, const std::uint8_t* group) {
  return {group + 2 * call.queries.head_dim * sizeof(Half), kGroupEntries / 2};
}

// The block's numbers as f32, scales not applied.
inline void expand_block(const PackedCall& call, PackedBlock& block) {
  const std::size_t d = call.queries.head_dim;
  for (std::size_t g = 0; g < kGroupsPerBlock && block.n[g] > 0; ++g) {
    float* keys = call.expanded_keys(g);
    float* values = call.expanded_values(g);
    const std::size_t n = block.n[g];
    switch (call.entries.types.keys) {
      case RowType::kF16:
        expand(HalfLoader{block.keys[g], kGroupEntries}, d, kGroupEntries, block.own_values, keys);
        break;
      case RowType::kQ8_0:
        expand(ByteLoader{block.keys[g], kGroupEntries}, d, kGroupEntries, block.own_values, keys);
        break;
      case RowType::kQ4:
        expand(key_codes(call, block.keys[g]), d, kGroupEntries, block.own_values, keys);
        break;
    }
    switch (call.entries.types.values) {
      case RowType::kF16:
        expand(HalfLoader{block.values[g], d}, n, d, block.next_keys, values);
        break;
      case RowType::kQ8_0:
        expand(ByteLoader{block.values[g], d}, n, d, block.next_keys, values);
        break;
      case RowType::kQ4:
        expand(NibbleLoader{block.values[g], d / 2}, n, d, block.next_keys, values);
        break;
    }
  }
}

inline Span seen_by_packed_rows(const PackedCall& call, std::size_t start, std::size_t first,
                                std::size_t n) {
  const std::size_t group = call.queries.group;
  const std::size_t first_token = first / group;
  return seen_in_block(call.visible + first_token, (first + n - 1) / group - first_token + 1,
                       start);
}

template <std::size_t kRows>
HWY_INLINE void multiply_keys(const PackedCall& call, PackedBlock& block, std::size_t g,
                              const KeyProduct<kRows>& product) {
  const std::uint8_t* group = block.keys[g];
  const RowType type = call.entries.types.keys;
  if (call.expanded != nullptr) {
    const FloatLoader numbers{call.expanded_keys(g), kGroupEntries};
    if (type == RowType::kF16) return product.f16(numbers, block.own_values);
    if (type == RowType::kQ8_0) return product.q8(numbers, group, block.own_values);
    return product.q4(numbers, group, call.scaled, block.own_values);
  }
  if (type == RowType::kF16) return product.f16(HalfLoader{group, kGroupEntries}, block.own_values);
  if (type == RowType::kQ8_0)
    return product.q8(ByteLoader{group, kGroupEntries}, group, block.own_values);
  product.q4(key_codes(call, group), group, call.scaled, block.own_values);
}

template <std::size_t kRows>
HWY_INLINE void add_values(const PackedCall& call, PackedBlock& block, std::size_t g,
                           const ValueProduct<kRows>& product) {
  const std::uint8_t* group = block.values[g];
  const std::size_t d = product.head_dim;
  const RowType type = call.entries.types.values;
  if (call.expanded != nullptr) {
    const FloatLoader numbers{call.expanded_values(g), d};
    if (type == RowType::kF16) return product.f16(numbers, group, block.next_keys);
    if (type == RowType::kQ8_0) return product.q8(numbers, group, call.weights, block.next_keys);
    return product.q4(numbers, group, call.weights, block.next_keys);
  }
  if (type == RowType::kF16) return product.f16(HalfLoader{group, d}, group, block.next_keys);
  if (type == RowType::kQ8_0)
    return product.q8(ByteLoader{group, d}, group, call.weights, block.next_keys);
  product.q4(NibbleLoader{group, d / 2}, group, call.weights, block.next_keys);
}

template <std::size_t kRows>
HWY_NOINLINE void attend_packed_rows(const PackedCall& call, PackedBlock& block,
                                     std::size_t first_row) {
  const std::size_t d = call.queries.head_dim;
  const Span seen = seen_by_packed_rows(call, block.start, first_row, kRows);
  if (seen.empty()) return;
  Span computed{};
  for (std::size_t g = 0; g < kGroupsPerBlock; ++g) {
    const std::size_t at = g * kGroupEntries;
    if (seen.first >= at + kGroupEntries || seen.last <= at) continue;
    computed = join(computed, {at, at + kGroupEntries});
    multiply_keys(call, block, g,
                  KeyProduct<kRows>{call.rows + first_row * d, d, call.z + at, kBlock});
  }
  float largest[kMaxRows];
  float keep[kMaxRows];
  for (std::size_t r = 0; r < kRows; ++r) {
    Span own = seen_in_block(call.visible[(first_row + r) / call.queries.group], block.start);
    if (own.empty()) own = {computed.last, computed.last};
    largest[r] = finish_logits(call.rule, call.bias, own, computed, call.z + r * kBlock);
  }
  fold_rows(kRows, largest, computed, call.z, call.state.max + first_row,
            call.state.sum + first_row, keep);
  for (std::size_t g = 0; g < kGroupsPerBlock; ++g) {
    const std::size_t at = g * kGroupEntries;
    if (seen.first >= at + kGroupEntries || seen.last <= at) continue;
    const std::size_t first = std::max(seen.first, at) - at;
    const std::size_t last = std::min(seen.last - at, block.n[g]);
    add_values(call, block, g,
               ValueProduct<kRows>{d, block.n[g], first, last, call.z + at, kBlock, keep,
                                   call.state.out + first_row * d});
    std::fill(keep, keep + kRows, 1.0f);
  }
}

inline void attend_packed_group(const PackedCall& call, PackedBlock& block, std::size_t first_row,
                                std::size_t n_rows) {
  switch (n_rows) {
    case 1:
      return attend_packed_rows<1>(call, block, first_row);
    case 2:
      return attend_packed_rows<2>(call, block, first_row);
    case 3:
      return attend_packed_rows<3>(call, block, first_row);
    case 4:
      return attend_packed_rows<4>(call, block, first_row);
    case 5:
      return attend_packed_rows<5>(call, block, first_row);
    case 6:
      return attend_packed_rows<6>(call, block, first_row);
    case 7:
      return attend_packed_rows<7>(call, block, first_row);
    default:
      return attend_packed_rows<8>(call, block, first_row);
  }
}

void attend_packed(const QueryView& queries, const PackedView& entries, const LogitRule& rule,
                   const Visible* visible, const StateView& state, Scratch& scratch) {
  const std::size_t n_rows = queries.n_rows();
  const std::size_t d = queries.head_dim;
  if (n_rows == 0 || entries.n == 0) return;
  const std::size_t rows_size = (n_rows * d + 15) / 16 * 16;
  const std::size_t scaled_size = kMaxRows * d;
  const std::size_t padded_size = d * kGroupEntries / 2 + d;  // f16 keys are the largest
  const bool expands = n_rows > kMostDirectRows;
  float* at =
      scratch.floats(rows_size + kMaxRows * kBlock + kBlock + scaled_size +
                     kMaxRows * kGroupEntries + padded_size + (expands ? 2 * kBlock * d : 0));
  PackedCall call{queries, entries, rule, visible, state, at, {}, {}, {}, {}, {}, {}};
  call.z = at += rows_size;
  call.bias = at += kMaxRows * kBlock;
  call.scaled = at += kBlock;
  call.weights = at += scaled_size;
  at += kMaxRows * kGroupEntries;
  call.padded = reinterpret_cast<std::uint8_t*>(at);
  if (expands) call.expanded = at + padded_size;
  const std::size_t width = queries.group * d;
  for (std::size_t t = 0; t < queries.n_tokens; ++t) {
    const float* from = queries.data + t * queries.token_stride;
    std::copy(from, from + width, call.rows + t * width);
  }
  std::size_t begin = entries.n;
  std::size_t end = 0;
  for (std::size_t t = 0; t < queries.n_tokens; ++t) {
    if (visible[t].first >= visible[t].last) continue;
    begin = std::min<std::size_t>(begin, visible[t].first);
    end = std::max<std::size_t>(end, visible[t].last);
  }
  const std::size_t most = expands ? kExpandedRows : kMostDirectRows;
  const std::size_t n_chunks = (n_rows + most - 1) / most;
  for (std::size_t start = begin / kBlock * kBlock; start < end; start += kBlock) {
    if (seen_in_block(visible, queries.n_tokens, start).empty()) continue;
    PackedBlock block = prepare_packed(call, start);
    if (expands) expand_block(call, block);
    for (std::size_t i = 0; i < n_chunks; ++i) {
      const std::size_t first_row = n_rows * i / n_chunks;
      attend_packed_group(call, block, first_row, n_rows * (i + 1) / n_chunks - first_row);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace precis
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace precis {

HWY_EXPORT(attend_packed);

void attend(const QueryView& queries, const PackedView& entries, const LogitRule& rule,
            const Visible* visible, const StateView& state, Scratch& scratch) {
  HWY_DYNAMIC_DISPATCH(attend_packed)(queries, entries, rule, visible, state, scratch);
}

}  // namespace precis
#endif  // HWY_ONCE
