#include "cache/packed_list.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "kernels/rows.h"

namespace precis {

PackedList::PackedList(const RowTypes& types, std::size_t head_dim)
    : types_(types), head_dim_(head_dim) {
  PRECIS_CHECK(fits(types.keys, head_dim) && fits(types.values, head_dim), "head_dim ", head_dim,
               ", ", row_type_name(types.keys), " and ", row_type_name(types.values));
}

PackedList PackedList::from_rows(const RowTypes& types, std::size_t head_dim,
                                 const EntryView& rows) {
  PackedList list(types, head_dim);
  list.reserve(rows.n);
  list.append(rows.keys, rows.values, rows.n);
  return list;
}

PackedList PackedList::from_packed(const RowTypes& types, std::size_t head_dim, std::size_t n,
                                   RowMemory keys, RowMemory values) {
  PackedList list(types, head_dim);
  PRECIS_CHECK(keys.size() == key_bytes(types.keys, head_dim, n), keys.size(), " for ", n);
  PRECIS_CHECK(values.size() == value_bytes(types.values, head_dim, n), values.size(), " for ", n);
  list.size_ = n;
  list.keys_ = std::move(keys);
  list.values_ = std::move(values);
  return list;
}

void PackedList::reserve(std::size_t n) {
  keys_.reserve(key_bytes(types_.keys, head_dim_, n));
  values_.reserve(value_bytes(types_.values, head_dim_, n));
}

void PackedList::append(const float* keys, const float* values, std::size_t n) {
  if (n == 0) return;
  PRECIS_CHECK(size_ % kGroupEntries == 0, "a list of ", size_, " entries is closed");
  const std::size_t end = size_ + n;
  const std::size_t d = head_dim_;
  // Not resize alone: growing by a group at a time must stay linear.
  const auto grow = [](RowMemory& memory, std::size_t bytes) {
    if (bytes > memory.capacity())
      memory.reserve(std::max(bytes, memory.capacity() + memory.capacity() / 2));
    memory.resize(bytes);
  };
  grow(keys_, key_bytes(types_.keys, d, end));
  grow(values_, value_bytes(types_.values, d, end));
  for (std::size_t i = 0; i < n; i += kGroupEntries) {
    const std::size_t width = std::min(kGroupEntries, n - i);
    pack_keys(types_.keys, keys + i * d, width, d,
              keys_.data() + key_bytes(types_.keys, d, size_ + i));
    pack_values(types_.values, values + i * d, width, d,
                values_.data() + value_bytes(types_.values, d, size_ + i));
  }
  size_ = end;
}

void PackedList::append(const Half* keys, const Half* values, std::size_t n) {
  const std::size_t most = kGroupEntries * head_dim_;
  std::vector<float> rows(2 * most);
  for (std::size_t i = 0; i < n; i += kGroupEntries) {
    const std::size_t width = std::min(kGroupEntries, n - i);
    convert_rows(keys + i * head_dim_, rows.data(), width * head_dim_);
    convert_rows(values + i * head_dim_, rows.data() + most, width * head_dim_);
    append(rows.data(), rows.data() + most, width);
  }
}

void PackedList::truncate(std::size_t n) {
  PRECIS_CHECK(n == size_ || (n < size_ && n % kGroupEntries == 0), n, " of ", size_);
  // Even if n is size(): an append that ran out of memory may have left longer buffers.
  keys_.resize(key_bytes(types_.keys, head_dim_, n));
  values_.resize(value_bytes(types_.values, head_dim_, n));
  size_ = n;
}

void PackedList::unpack(std::size_t first, std::size_t n, float* keys, float* values) const {
  PRECIS_CHECK(first + n <= size_, first, " + ", n, " > ", size_);
  const std::size_t d = head_dim_;
  std::vector<float> rows(2 * kGroupEntries * d);
  float* group_values = rows.data() + kGroupEntries * d;
  std::size_t done = 0;
  while (done < n) {
    const std::size_t start = (first + done) / kGroupEntries * kGroupEntries;
    const std::size_t width = std::min(kGroupEntries, size_ - start);
    unpack_keys(types_.keys, keys_.data() + key_bytes(types_.keys, d, start), width, d,
                rows.data());
    unpack_values(types_.values, values_.data() + value_bytes(types_.values, d, start), width, d,
                  group_values);
    const std::size_t skip = first + done - start;
    const std::size_t count = std::min(n - done, width - skip);
    std::copy_n(rows.data() + skip * d, count * d, keys + done * d);
    std::copy_n(group_values + skip * d, count * d, values + done * d);
    done += count;
  }
}

}  // namespace precis
