// The packed entries of one KV head: rows in the formats of kernels/row_type.h. Grows at the end,
// group by group; what is stored never changes. Copyable. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cache/row_memory.h"
#include "kernels/packed_rows.h"

namespace precis {

class PackedList {
 public:
  PackedList() = default;
  // REQUIRES: fits(types.keys, head_dim) and fits(types.values, head_dim).
  PackedList(const RowTypes& types, std::size_t head_dim);

  // Every row of a list in f16.
  static PackedList from_rows(const RowTypes& types, std::size_t head_dim, const EntryView& rows);
  // n entries packed elsewhere, byte for byte. REQUIRES: the constructor's, and as many bytes as n
  // entries take (row_type.h). What the bytes mean is not looked at.
  static PackedList from_packed(const RowTypes& types, std::size_t head_dim, std::size_t n,
                                RowMemory keys, RowMemory values);

  std::size_t size() const { return size_; }
  const RowTypes& types() const { return types_; }
  std::size_t head_dim() const { return head_dim_; }
  // Makes room for n entries in total, exactly.
  void reserve(std::size_t n);
  // Packs n more entries, keys and values are [n, head_dim]. Only whole groups may be followed by
  // more: size() must be a multiple of kGroupEntries.
  void append(const float* keys, const float* values, std::size_t n);
  void append(const Half* keys, const Half* values, std::size_t n);
  // Drops the last entries; n must be a multiple of kGroupEntries or size().
  void truncate(std::size_t n);
  // What is stored of entries [first, first + n), as numbers: [n, head_dim] each.
  void unpack(std::size_t first, std::size_t n, float* keys, float* values) const;

  // Valid until the next append. Without bias.
  PackedView view() const { return {keys_.data(), values_.data(), nullptr, size_, types_}; }
  // Bytes of the entries.
  std::size_t bytes() const { return keys_.size() + values_.size(); }
  // Bytes really held, including room to grow.
  std::size_t allocated_bytes() const { return keys_.capacity() + values_.capacity(); }

 private:
  RowTypes types_;
  std::size_t head_dim_ = 0;
  std::size_t size_ = 0;
  RowMemory keys_;
  RowMemory values_;
};

}  // namespace precis
