#include "cache/kv_rows.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace precis {

void TailRows::reallocate(std::size_t capacity, std::size_t skip) {
  const std::size_t width = shape_.head_dim;
  const std::size_t kept = size_ - skip;
  // Both before either is given up: what fails for want of memory must change nothing.
  std::vector<Half> keys(shape_.n_kv_heads * capacity * width);
  std::vector<Half> values(keys.size());
  for (std::size_t h = 0; h < shape_.n_kv_heads && kept > 0; ++h) {
    const std::size_t from = (h * capacity_ + skip) * width;
    std::copy_n(keys_.data() + from, kept * width, keys.data() + h * capacity * width);
    std::copy_n(values_.data() + from, kept * width, values.data() + h * capacity * width);
  }
  keys_.swap(keys);
  values_.swap(values);
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
    : shape_(shape), first_position_(first_position), heads_(std::move(heads)) {
  PRECIS_CHECK(heads_.size() == shape.n_kv_heads, heads_.size(), " vs ", shape.n_kv_heads);
  bool any_bias = false;
  bool any_positions = false;
  for (const Head& head : heads_) {
    const std::size_t n = head.rows.size();
    PRECIS_CHECK(n == 0 || head.rows.head_dim() == shape.head_dim, head.rows.head_dim(), " vs ",
                 shape.head_dim);
    PRECIS_CHECK(head.bias.empty() || head.bias.size() == n, head.bias.size(), " vs ", n);
    PRECIS_CHECK(head.positions.empty() || head.positions.size() == n, head.positions.size(),
                 " vs ", n);
    const std::size_t n_residual = head.residual_rows.size();
    PRECIS_CHECK(head.residual_bias.size() == n_residual, head.residual_bias.size(), " vs ",
                 n_residual);
    PRECIS_CHECK(n_residual == 0 || head.residual_rows.head_dim() == shape.head_dim,
                 head.residual_rows.head_dim(), " vs ", shape.head_dim);
    any_bias = any_bias ||
               std::any_of(head.bias.begin(), head.bias.end(), [](float b) { return b != 0.0f; });
    any_positions = any_positions || !head.positions.empty();
  }
  for (Head& head : heads_) {
    const std::size_t n = head.rows.size();
    if (!any_bias)
      head.bias = {};
    else if (head.bias.empty())
      head.bias.assign(n, 0.0f);
    for (std::size_t i = head.positions.size(); any_positions && i < n; ++i)
      head.positions.push_back(first_position + static_cast<std::int32_t>(i));
  }
}

FrozenLayer FrozenLayer::from_tail(const TailRows& rows, const RowTypes& types) {
  std::vector<Head> heads(rows.shape().n_kv_heads);
  for (std::size_t h = 0; h < heads.size(); ++h)
    heads[h].rows = PackedList::from_rows(types, rows.shape().head_dim, rows.head(h));
  return FrozenLayer(rows.shape(), std::move(heads), rows.first_position());
}

PackedView FrozenLayer::head(std::size_t head) const {
  PackedView view = heads_[head].rows.view();
  if (!heads_[head].bias.empty()) view.bias = heads_[head].bias.data();
  return view;
}

PackedView FrozenLayer::residual(std::size_t head) const {
  PackedView view = heads_[head].residual_rows.view();
  view.bias = heads_[head].residual_bias.data();
  return view;
}

std::size_t FrozenLayer::bytes() const {
  std::size_t bytes = 0;
  for (const Head& head : heads_)
    bytes += head.rows.bytes() + head.bias.size() * sizeof(float) +
             head.positions.size() * sizeof(std::int32_t) + head.residual_rows.bytes() +
             head.residual_bias.size() * sizeof(float);
  return bytes;
}

}  // namespace precis
