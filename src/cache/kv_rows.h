// Growing and frozen storage of keys and values. Index order is layer, head, token, channel; one
// object here is one layer. Rows are post-RoPE. Positions are those in the text, also where keys
// were turned to stand elsewhere (Positioner in compress/stage.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/half.h"
#include "cache/packed_list.h"
#include "kernels/attention.h"
#include "kernels/sharpness_gate.h"

namespace precis {

// Shape of the KV cache of one layer.
struct KvShape {
  std::size_t n_kv_heads = 0;
  std::size_t head_dim = 0;

  // Bytes of one key row and one value row of one KV head in f16.
  std::size_t row_pair_bytes() const { return 2 * head_dim * sizeof(Half); }
  friend bool operator==(const KvShape&, const KvShape&) = default;
};

// Append-only f16 keys and values of consecutive positions, all KV heads in step: the dense cache
// of a prefill and the tail of a session. Copyable (Session::fork copies its tail). Not
// thread-safe, but distinct heads of rows already reserved may be written by distinct threads.
class TailRows {
 public:
  TailRows() = default;
  explicit TailRows(const KvShape& shape, std::int32_t first_position = 0)
      : shape_(shape), first_position_(first_position) {}

  const KvShape& shape() const { return shape_; }
  std::size_t size() const { return size_; }
  // Position of row 0. Row i has position first_position() + i.
  std::int32_t first_position() const { return first_position_; }
  std::int32_t next_position() const { return first_position_ + static_cast<std::int32_t>(size_); }
  // Bytes really held, including room to grow.
  std::size_t allocated_bytes() const { return 2 * storage_capacity() * sizeof(Half); }
  // Bytes of the rows in use.
  std::size_t used_bytes() const { return size_ * shape_.n_kv_heads * shape_.row_pair_bytes(); }

  // Makes room for n rows in total, exactly.
  void reserve(std::size_t n);
  // Appends n uninitialised rows to every head; write them with key_row and value_row.
  void grow(std::size_t n);
  // Drops the last rows so that `size` remain.
  void truncate(std::size_t size);
  // Drops the first n rows; first_position() rises by n.
  void drop_front(std::size_t n);
  // Has the rows stand at other positions; their keys are the caller's to turn.
  void set_first_position(std::int32_t position) { first_position_ = position; }
  // Frees everything; size becomes 0.
  void clear();

  Half* key_row(std::size_t head, std::size_t row) { return keys_.data() + offset(head, row); }
  Half* value_row(std::size_t head, std::size_t row) { return values_.data() + offset(head, row); }
  // All rows of a head; valid until the next call that changes the object's size.
  EntryView head(std::size_t head) const {
    return {keys_.data() + offset(head, 0), values_.data() + offset(head, 0), nullptr, size_};
  }

 private:
  std::size_t offset(std::size_t head, std::size_t row) const {
    return (head * capacity_ + row) * shape_.head_dim;
  }
  std::size_t storage_capacity() const { return keys_.capacity(); }
  void reallocate(std::size_t capacity, std::size_t skip);

  KvShape shape_;
  std::int32_t first_position_ = 0;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
  std::vector<Half> keys_;    // [n_kv_heads, capacity, head_dim]
  std::vector<Half> values_;  // [n_kv_heads, capacity, head_dim]
};

// The condensed cache of one layer: for each KV head a list of packed entries (key, value, bias,
// position). Immutable once built, shared between sessions.
//
// A head has two sections: main entries, in order of position, and residual entries, each a summary
// of tokens that are not kept: mean key, mean value, a bias that gives it their mass. Both are rows
// of one softmax. The residual section is a list of its own, because its partial state is gated
// when it is merged with the rest, and so that quantised main rows share their scales with nothing.
// Residual entries stand at no position.
class FrozenLayer {
 public:
  // One head's entries on the way in.
  struct Head {
    PackedList rows;
    std::vector<float> bias;              // [rows.size()] or empty: all 0
    std::vector<std::int32_t> positions;  // [rows.size()] or empty: first_position + i
    PackedList residual_rows;
    std::vector<float> residual_bias;  // [residual_rows.size()]
    SharpnessGate gate;                // of the residual section
  };

  FrozenLayer(const KvShape& shape, std::vector<Head> heads, std::int32_t first_position = 0);

  // Every row of a tail: no bias, implicit positions. In f16 the rows are unchanged.
  static FrozenLayer from_tail(const TailRows& rows, const RowTypes& types = {});

  const KvShape& shape() const { return shape_; }
  // Main and residual entries together.
  std::size_t n_entries(std::size_t head) const { return n_main(head) + n_residual(head); }
  std::size_t n_main(std::size_t head) const { return heads_[head].rows.size(); }
  std::size_t n_residual(std::size_t head) const { return heads_[head].residual_rows.size(); }
  RowTypes types(std::size_t head) const { return heads_[head].rows.types(); }
  // Main entries.
  PackedView head(std::size_t head) const;
  PackedView residual(std::size_t head) const;
  const SharpnessGate& gate(std::size_t head) const { return heads_[head].gate; }
  // The stored entries as numbers.
  const PackedList& rows(std::size_t head) const { return heads_[head].rows; }
  const PackedList& residual_rows(std::size_t head) const { return heads_[head].residual_rows; }
  // Of a main entry.
  std::int32_t position(std::size_t head, std::size_t entry) const {
    const std::vector<std::int32_t>& positions = heads_[head].positions;
    return positions.empty() ? first_position_ + static_cast<std::int32_t>(entry)
                             : positions[entry];
  }
  // The stored positions of a head's main entries; empty if they are first_position() + i.
  std::span<const std::int32_t> positions(std::size_t head) const { return heads_[head].positions; }
  std::int32_t first_position() const { return first_position_; }
  // Bytes of keys, values, biases and positions, from the live buffers of both sections.
  std::size_t bytes() const;

 private:
  KvShape shape_;
  std::int32_t first_position_ = 0;
  // [n_kv_heads]; of main entries all biases or none, all positions or none.
  std::vector<Head> heads_;
};

}  // namespace precis
