#include "cache/kv_rows.h"

#include <algorithm>

#include "base/error.h"

namespace precis {

void TailRows::reallocate(std::size_t capacity, std::size_t skip) {
  const std::size_t width = shape_.head_dim;
  const std::size_t kept = size_ - skip;
  for (std::vector<Half>* store : {&keys_, &values_}) {
    std::vector<Half> next(shape_.n_kv_heads * capacity * width);
    for (std::size_t h = 0; h < shape_.n_kv_heads && kept > 0; ++h) {
      const Half* from = store->data() + (h * capacity_ + skip) * width;
      std::copy(from, from + kept * width, next.data() + h * capacity * width);
    }
    store->swap(next);
  }
  capacity_ = capacity;
  size_ = kept;
}

void TailRows::reserve(std::size_t n) {
  if (n > capacity_) reallocate(n, 0);
}

void TailRows::grow(std::size_t n) {
  const std::size_t wanted = size_ + n;
  // Growth by half keeps the amortised copy small and the slack below a third of a long tail.
  if (wanted > capacity_)
    reallocate(std::max({wanted, capacity_ + capacity_ / 2, std::size_t{64}}), 0);
  size_ = wanted;
}

void TailRows::truncate(std::size_t size) {
  PRECIS_CHECK(size <= size_, size, " > ", size_);
  size_ = size;
}

void TailRows::drop_front(std::size_t n) {
  PRECIS_CHECK(n <= size_, n, " > ", size_);
  if (n == 0) return;
  reallocate(size_ - n, n);
  first_position_ += static_cast<std::int32_t>(n);
}

void TailRows::clear() {
  const std::int32_t first = first_position_;
  *this = TailRows(shape_, first);
}

FrozenLayer::FrozenLayer(const KvShape& shape, std::vector<Head> heads, std::int32_t first_position)
    : shape_(shape), first_position_(first_position) {
  PRECIS_CHECK(heads.size() == shape.n_kv_heads, heads.size(), " vs ", shape.n_kv_heads);
  offsets_.assign(1, 0);
  bool any_bias = false;
  bool any_positions = false;
  for (const Head& head : heads) {
    const std::size_t n = head.keys.size() / shape.head_dim;
    PRECIS_CHECK(head.keys.size() == n * shape.head_dim && head.values.size() == head.keys.size(),
                 head.keys.size(), " vs ", head.values.size());
    PRECIS_CHECK(head.bias.empty() || head.bias.size() == n, head.bias.size(), " vs ", n);
    PRECIS_CHECK(head.positions.empty() || head.positions.size() == n, head.positions.size(),
                 " vs ", n);
    PRECIS_CHECK(head.n_residual <= n, head.n_residual, " > ", n);
    offsets_.push_back(offsets_.back() + n);
    n_residual_.push_back(head.n_residual);
    any_bias = any_bias ||
               std::any_of(head.bias.begin(), head.bias.end(), [](float b) { return b != 0.0f; });
    any_positions = any_positions || !head.positions.empty();
  }
  const std::size_t total = offsets_.back();
  keys_.reserve(total * shape.head_dim);
  values_.reserve(total * shape.head_dim);
  if (any_bias) bias_.reserve(total);
  if (any_positions) positions_.reserve(total);
  for (std::size_t h = 0; h < heads.size(); ++h) {
    Head& head = heads[h];
    const std::size_t n = offsets_[h + 1] - offsets_[h];
    keys_.insert(keys_.end(), head.keys.begin(), head.keys.end());
    values_.insert(values_.end(), head.values.begin(), head.values.end());
    if (any_bias) {
      if (head.bias.empty())
        bias_.resize(bias_.size() + n, 0.0f);
      else
        bias_.insert(bias_.end(), head.bias.begin(), head.bias.end());
    }
    if (any_positions) {
      if (head.positions.empty())
        for (std::size_t i = 0; i < n; ++i)
          positions_.push_back(first_position + static_cast<std::int32_t>(i));
      else
        positions_.insert(positions_.end(), head.positions.begin(), head.positions.end());
    }
    head = Head();  // free early: a layer is held twice for as short as possible
  }
}

FrozenLayer FrozenLayer::from_tail(const TailRows& rows) {
  const std::size_t width = rows.size() * rows.shape().head_dim;
  std::vector<Head> heads(rows.shape().n_kv_heads);
  for (std::size_t h = 0; h < heads.size(); ++h) {
    const EntryView view = rows.head(h);
    heads[h].keys.assign(view.keys, view.keys + width);
    heads[h].values.assign(view.values, view.values + width);
  }
  return FrozenLayer(rows.shape(), std::move(heads), rows.first_position());
}

EntryView FrozenLayer::head(std::size_t head) const {
  const std::size_t first = offsets_[head];
  return {keys_.data() + first * shape_.head_dim, values_.data() + first * shape_.head_dim,
          bias_.empty() ? nullptr : bias_.data() + first, n_entries(head)};
}

std::size_t FrozenLayer::bytes() const {
  return keys_.size() * sizeof(Half) + values_.size() * sizeof(Half) +
         bias_.size() * sizeof(float) + positions_.size() * sizeof(std::int32_t);
}

}  // namespace precis
