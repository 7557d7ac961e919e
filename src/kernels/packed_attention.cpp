#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/packed_groups.h"
#include "kernels/packed_rows.h"
#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/packed_attention.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/quantised-inl.h"

HWY_BEFORE_NAMESPACE();
namespace precis {
namespace HWY_NAMESPACE {

constexpr std::size_t kGroupsPerBlock = kBlock / kGroupEntries;
// Up to this many rows convert f16 entries as they load them; of more, 6 at a time share a block
// that was expanded to f32.
constexpr std::size_t kMostDirectRows = kMaxRows;
constexpr std::size_t kSharingRows = 6;

// Everything about a call that does not change from block to block.
struct PackedCall {
  const QueryView& queries;
  const PackedView& entries;
  const LogitRule& rule;
  const Visible* visible;
  const StateView& state;
  float* rows;                           // [n_rows, head_dim] packed queries
  float* z;                              // [kMaxRows, kBlock]
  float* bias;                           // [kBlock]
  Codes<LongCode> long_queries;          // of all rows, for q8_0 keys
  Codes<ShortCode> short_queries;        // of kMaxRows, for a group of q4 keys
  Codes<LongCode> long_probabilities;    // of kMaxRows, for a group of q8_0 values
  Codes<ShortCode> short_probabilities;  // for q4
  std::uint8_t* padded_keys;             // a full group
  std::uint8_t* padded_values;
  float* expanded_keys;    // f16 of a block as f32, [kBlock, head_dim]; or null
  float* expanded_values;  // likewise

  const std::uint8_t* key_group(std::size_t start) const {
    return entries.keys + key_bytes(entries.types.keys, queries.head_dim, start);
  }
  const std::uint8_t* value_group(std::size_t start) const {
    return entries.values + value_bytes(entries.types.values, queries.head_dim, start);
  }
};

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
    // The last group of a list: the loops know only full ones (except of f16 values). What is added
    // is hidden.
    if (block.n[g] == 0 || block.n[g] == kGroupEntries) continue;
    const std::size_t d = call.queries.head_dim;
    pad_key_group(call.entries.types.keys, block.keys[g], block.n[g], d, call.padded_keys);
    block.keys[g] = call.padded_keys;
    if (call.entries.types.values == RowType::kF16) continue;
    pad_value_group(call.entries.types.values, block.values[g], block.n[g], d, call.padded_values);
    block.values[g] = call.padded_values;
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

// The block's f16 numbers as f32.
inline void expand_block(const PackedCall& call, PackedBlock& block) {
  const std::size_t d = call.queries.head_dim;
  for (std::size_t g = 0; g < kGroupsPerBlock && block.n[g] > 0; ++g) {
    const std::size_t skip = g * kGroupEntries * d;
    if (call.expanded_keys != nullptr)
      expand(HalfLoader{block.keys[g], kGroupEntries}, d, kGroupEntries, block.own_values,
             call.expanded_keys + skip);
    if (call.expanded_values != nullptr)
      expand(HalfLoader{block.values[g], d}, block.n[g], d, block.next_keys,
             call.expanded_values + skip);
  }
}

inline Span seen_by_packed_rows(const PackedCall& call, std::size_t start, std::size_t first,
                                std::size_t n) {
  const std::size_t group = call.queries.group;
  const std::size_t first_token = first / group;
  return seen_in_block(call.visible + first_token, (first + n - 1) / group - first_token + 1,
                       start);
}

// Logits of rows from first_row on over group g of the block.
template <std::size_t kRows>
HWY_INLINE void multiply_keys(const PackedCall& call, PackedBlock& block, std::size_t g,
                              std::size_t first_row) {
  const std::size_t d = call.queries.head_dim;
  const std::uint8_t* group = block.keys[g];
  const float* rows = call.rows + first_row * d;
  float* z = call.z + g * kGroupEntries;
  switch (call.entries.types.keys) {
    case RowType::kF16: {
      const KeyProduct<kRows> product{rows, d, z, kBlock};
      if (call.expanded_keys == nullptr)
        return product.f16(HalfLoader{group, kGroupEntries}, block.own_values);
      return product.f16(FloatLoader{call.expanded_keys + g * kGroupEntries * d, kGroupEntries},
                         block.own_values);
    }
    case RowType::kQ8_0:
      return multiply_key_codes<kRows, true>(
          KeyBytes{group}, call.long_queries.from_row(first_row, d), group + kGroupEntries * d, d,
          z, kBlock, block.own_values);
    case RowType::kQ4:
      round_scaled_queries<kRows>(rows, d, group, call.short_queries);
      return multiply_key_codes<kRows, false>(KeyNibbles{group + 2 * d * sizeof(Half)},
                                              call.short_queries, nullptr, d, z, kBlock,
                                              block.own_values);
  }
}

// Adds the values of entries [first, last) of group g of the block; the others have probability 0.
template <std::size_t kRows>
HWY_INLINE void add_values(const PackedCall& call, PackedBlock& block, std::size_t g,
                           std::size_t first, std::size_t last, const float* keep, float* out) {
  const std::size_t d = call.queries.head_dim;
  const std::uint8_t* group = block.values[g];
  const float* p = call.z + g * kGroupEntries;
  switch (call.entries.types.values) {
    case RowType::kF16: {
      const ValueProduct<kRows> product{d, block.n[g], first, last, p, kBlock, keep, out};
      if (call.expanded_values == nullptr)
        return product.f16(HalfLoader{group, d}, group, block.next_keys);
      return product.f16(FloatLoader{call.expanded_values + g * kGroupEntries * d, d}, group,
                         block.next_keys);
    }
    case RowType::kQ8_0:
      round_probabilities<kRows, false>(p, kBlock, d, group + kGroupEntries * d,
                                        call.long_probabilities);
      return add_value_codes<kRows>(ValueBytes{group, d}, call.long_probabilities, d, keep, out,
                                    block.next_keys);
    case RowType::kQ4:
      round_probabilities<kRows, true>(p, kBlock, d, group + kGroupEntries * d / 2,
                                       call.short_probabilities);
      return add_value_codes<kRows>(ValueNibbles{group, d}, call.short_probabilities, d, keep, out,
                                    block.next_keys);
  }
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
    multiply_keys<kRows>(call, block, g, first_row);
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
    add_values<kRows>(call, block, g, first, last, keep, call.state.out + first_row * d);
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

// Gives out parts of one array, each aligned to 64 bytes. With no array it only counts.
struct Parts {
  float* base = nullptr;
  std::size_t used = 0;
  float* floats(std::size_t n) {
    float* part = base == nullptr ? nullptr : base + used;
    used += (n + 15) / 16 * 16;
    return part;
  }
  std::uint8_t* bytes(std::size_t n) {
    return reinterpret_cast<std::uint8_t*>(floats((n + sizeof(float) - 1) / sizeof(float)));
  }
  template <class Code>
  Codes<Code> codes(std::size_t n_rows, std::size_t head_dim) {
    const std::size_t n_blocks = (head_dim + kBlockChannels - 1) / kBlockChannels;
    Codes<Code> codes;
    codes.codes = reinterpret_cast<Code*>(bytes(n_rows * head_dim * sizeof(Code)));
    codes.steps = floats(n_rows * n_blocks);
    codes.bases = floats(n_rows * n_blocks);
    return codes;
  }
};

inline void place_memory(PackedCall& call, Parts& parts) {
  const RowTypes& types = call.entries.types;
  const std::size_t n_rows = call.queries.n_rows();
  const std::size_t d = call.queries.head_dim;
  call.rows = parts.floats(n_rows * d);
  call.z = parts.floats(kMaxRows * kBlock);
  call.bias = parts.floats(kBlock);
  if (types.keys == RowType::kQ8_0) call.long_queries = parts.codes<LongCode>(n_rows, d);
  if (types.keys == RowType::kQ4) call.short_queries = parts.codes<ShortCode>(kMaxRows, d);
  if (types.values == RowType::kQ8_0) call.long_probabilities = parts.codes<LongCode>(kMaxRows, d);
  if (types.values == RowType::kQ4) call.short_probabilities = parts.codes<ShortCode>(kMaxRows, d);
  call.padded_keys = parts.bytes(key_bytes(types.keys, d, kGroupEntries));
  call.padded_values = parts.bytes(value_bytes(types.values, d, kGroupEntries));
  if (n_rows <= kMostDirectRows) return;
  if (types.keys == RowType::kF16) call.expanded_keys = parts.floats(kBlock * d);
  if (types.values == RowType::kF16) call.expanded_values = parts.floats(kBlock * d);
}

void attend_packed(const QueryView& queries, const PackedView& entries, const LogitRule& rule,
                   const Visible* visible, const StateView& state, Scratch& scratch) {
  const std::size_t n_rows = queries.n_rows();
  const std::size_t d = queries.head_dim;
  if (n_rows == 0 || entries.n == 0) return;
  PackedCall call{queries, entries, rule, visible, state, {}, {}, {},
                  {},      {},      {},   {},      {},    {}, {}, {}};
  Parts counted;
  place_memory(call, counted);
  Parts parts{scratch.floats(counted.used)};
  place_memory(call, parts);
  const std::size_t width = queries.group * d;
  for (std::size_t t = 0; t < queries.n_tokens; ++t) {
    const float* from = queries.data + t * queries.token_stride;
    std::copy(from, from + width, call.rows + t * width);
  }
  if (entries.types.keys == RowType::kQ8_0) round_queries(call.rows, n_rows, d, call.long_queries);
  std::size_t begin = entries.n;
  std::size_t end = 0;
  for (std::size_t t = 0; t < queries.n_tokens; ++t) {
    if (visible[t].first >= visible[t].last) continue;
    begin = std::min<std::size_t>(begin, visible[t].first);
    end = std::max<std::size_t>(end, visible[t].last);
  }
  const std::size_t most = n_rows > kMostDirectRows ? kSharingRows : kMostDirectRows;
  const std::size_t n_chunks = (n_rows + most - 1) / most;
  for (std::size_t start = begin / kBlock * kBlock; start < end; start += kBlock) {
    if (seen_in_block(visible, queries.n_tokens, start).empty()) continue;
    PackedBlock block = prepare_packed(call, start);
    expand_block(call, block);
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
