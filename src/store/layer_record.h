// Sections shape and rows of one layer: what is stored of it, and where in section rows each array
// lies.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/session_state.h"
#include "store/cache_reader.h"

namespace precis {

struct HeadRecord {
  std::size_t n_main = 0;
  std::size_t n_residual = 0;
  RowTypes types;
  RowTypes residual_types;
  SharpnessGate gate;
};

struct LayerRecord {
  bool is_frozen = false;  // false: a sliding layer
  bool has_biases = false;
  bool has_positions = false;
  std::size_t n_packed = 0;  // rows of the packed tail, of each head
  std::size_t n_tail = 0;
  std::int32_t tail_position = 0;
  std::int32_t first_position = 0;  // of entries without stored positions
  std::vector<HeadRecord> heads;    // [n_kv_heads], empty if not frozen

  // Bytes of rows, biases and positions, as Session::kv_bytes() counts them.
  std::size_t kv_bytes(const KvShape& shape, const RowTypes& tail_types) const;
};

LayerRecord record_of(const LayerState& layer);
std::vector<std::uint8_t> encode_shape(const LayerRecord& record);
// Sizes of the arrays in section rows, in order.
std::vector<std::uint64_t> array_bytes(const LayerRecord& record, const KvShape& shape,
                                       const RowTypes& tail_types);
// The arrays themselves, as they lie in the state; as many as array_bytes() has.
std::vector<const void*> arrays_of(const LayerState& layer, const LayerRecord& record);

// Both throw through `reader`. After read_shape the record's arrays fill section rows exactly.
LayerRecord read_shape(const CacheReader& reader, std::size_t layer, const KvShape& shape,
                       const RowTypes& tail_types);
LayerState read_rows(const CacheReader& reader, std::size_t layer, const LayerRecord& record,
                     const KvShape& shape, const RowTypes& tail_types);

}  // namespace precis
