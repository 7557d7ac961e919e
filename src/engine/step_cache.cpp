#include "engine/step_cache.h"

#include <algorithm>
#include <numeric>

#include "base/allocation_guard.h"
#include "base/error.h"
#include "kernels/rows.h"

namespace precis {
namespace {

// Rows of a packed list in f16, as they were before packing.
void unpack_rows(const PackedList& list, std::vector<Half>& keys, std::vector<Half>& values) {
  const std::size_t width = list.head_dim();
  keys.resize(list.size() * width);
  values.resize(list.size() * width);
  std::vector<float> group(2 * kGroupEntries * width);
  float* group_values = group.data() + kGroupEntries * width;
  for (std::size_t at = 0; at < list.size(); at += kGroupEntries) {
    const std::size_t n = std::min(kGroupEntries, list.size() - at);
    list.unpack(at, n, group.data(), group_values);
    convert_rows(group.data(), keys.data() + at * width, n * width);
    convert_rows(group_values, values.data() + at * width, n * width);
  }
}

}  // namespace

StepCache::StepCache(std::shared_ptr<const StepRules> rules, const FrozenLayer& frozen,
                     std::span<const StepCarry> carries, std::size_t capacity, std::size_t group,
                     std::int32_t next_position)
    : rules_(std::move(rules)),
      shape_(frozen.shape()),
      group_(group),
      next_position_(next_position),
      heads_(frozen.shape().n_kv_heads) {
  PRECIS_CHECK(carries.size() == heads_.size(), carries.size(), " vs ", heads_.size());
  const std::size_t n_fields = rules_->n_fields();
  for (std::size_t h = 0; h < heads_.size(); ++h) {
    Head& head = heads_[h];
    const std::size_t n = frozen.n_entries(h);
    PRECIS_CHECK(carries[h].tokens.size() == n && carries[h].fields.size() == n * n_fields, n,
                 " entries, ", carries[h].tokens.size(), " carried");
    PRECIS_CHECK(frozen.head(h).bias == nullptr, "biases with decode=step");
    unpack_rows(frozen.rows(h), head.keys, head.values);
    for (std::size_t i = 0; i < n; ++i) head.positions.push_back(frozen.position(h, i));
    head.fields = carries[h].fields;
    head.capacity = capacity == 0 ? n : capacity;
    head.seed = carries[h].seed;
    PRECIS_CHECK(n <= head.capacity, n, " entries, capacity ", head.capacity);
    stride_ = std::max(stride_, n);
  }
  for (std::size_t h = 0; h < heads_.size(); ++h) {
    const std::size_t n = heads_[h].positions.size();
    std::vector<float> fields(n_fields * stride_, 0.0f);
    for (std::size_t f = 0; f < n_fields; ++f)
      std::copy_n(heads_[h].fields.data() + f * n, n, fields.data() + f * stride_);
    heads_[h].fields = std::move(fields);
  }
}

std::size_t StepCache::longest() const {
  std::size_t n = 0;
  for (const Head& head : heads_) n = std::max(n, head.positions.size());
  return n;
}

EntryView StepCache::head(std::size_t head) const {
  const Head& own = heads_[head];
  return {own.keys.data(), own.values.data(), nullptr, own.positions.size()};
}

FrozenLayer StepCache::freeze() const {
  const std::size_t width = shape_.head_dim;
  std::vector<FrozenLayer::Head> out(heads_.size());
  for (std::size_t h = 0; h < heads_.size(); ++h) {
    const Head& own = heads_[h];
    const std::size_t n = own.positions.size();
    std::vector<std::size_t> slots(n);
    std::iota(slots.begin(), slots.end(), std::size_t{0});
    std::sort(slots.begin(), slots.end(),
              [&](std::size_t a, std::size_t b) { return own.positions[a] < own.positions[b]; });
    std::vector<Half> keys;
    std::vector<Half> values;
    for (const std::size_t slot : slots) {
      const auto at = static_cast<std::ptrdiff_t>(slot * width);
      const auto end = at + static_cast<std::ptrdiff_t>(width);
      keys.insert(keys.end(), own.keys.begin() + at, own.keys.begin() + end);
      values.insert(values.end(), own.values.begin() + at, own.values.begin() + end);
      out[h].positions.push_back(own.positions[slot]);
    }
    out[h].rows = PackedList::from_rows({}, width, {keys.data(), values.data(), nullptr, n});
  }
  return {shape_, std::move(out), 0};
}

std::size_t StepCache::bytes() const {
  const std::size_t entry =
      shape_.row_pair_bytes() + sizeof(std::int32_t) + rules_->n_fields() * sizeof(float);
  std::size_t n = 0;
  for (const Head& head : heads_) n += head.positions.size();
  return n * entry;
}

// A quarter more than needed, as far as the capacity goes: a head that may have many entries need
// not come to have them.
void StepCache::make_room(std::size_t n) {
  std::size_t most = 0;
  bool has_room = true;
  for (const Head& head : heads_) {
    const std::size_t rows = head.positions.size() + n;
    most = std::max(most, head.capacity + kChunk);
    has_room = has_room && rows <= stride_ && rows <= head.positions.capacity() &&
               rows * shape_.head_dim <= std::min(head.keys.capacity(), head.values.capacity());
  }
  if (has_room && scores_.size() == stride_) return;
  const AllocationAllowed growth("room for tokens on their way in, and up to the capacity");
  const std::size_t needed = longest() + kChunk;
  const std::size_t stride =
      stride_ >= needed ? stride_ : std::max(needed, std::min(most, needed + needed / 4));
  const std::size_t n_fields = rules_->n_fields();
  std::vector<std::vector<float>> wider;
  for (Head& head : heads_) {
    const std::size_t rows = std::min(stride, head.capacity + kChunk);
    head.keys.reserve(rows * shape_.head_dim);
    head.values.reserve(rows * shape_.head_dim);
    head.positions.reserve(rows);
    head.fields_before.resize(n_fields * stride);
    wider.emplace_back(n_fields * stride, 0.0f);
    for (std::size_t f = 0; f < n_fields; ++f)
      std::copy_n(head.fields.data() + f * stride_, head.positions.size(),
                  wider.back().data() + f * stride);
  }
  scores_.resize(stride);
  sums_.resize(stride);
  for (std::size_t h = 0; h < heads_.size(); ++h) heads_[h].fields.swap(wider[h]);
  stride_ = stride;
}

void StepCache::begin(std::size_t n) {
  PRECIS_CHECK(n <= kChunk && n_incoming_ == 0, n, " tokens, ", n_incoming_, " before");
  make_room(n);
  for (Head& head : heads_) {
    std::copy(head.fields.begin(), head.fields.end(), head.fields_before.begin());
    const std::size_t n_before = head.positions.size();
    for (std::size_t f = 0; f < rules_->n_fields(); ++f)
      std::fill_n(head.fields.data() + f * stride_ + n_before, n, 0.0f);
    for (std::size_t t = 0; t < n; ++t)
      head.positions.push_back(next_position_ + static_cast<std::int32_t>(t));
    head.keys.resize(head.positions.size() * shape_.head_dim);
    head.values.resize(head.positions.size() * shape_.head_dim);
  }
  n_incoming_ = n;
}

Half* StepCache::key_row(std::size_t head, std::size_t token) {
  Head& own = heads_[head];
  return own.keys.data() + (own.positions.size() - n_incoming_ + token) * shape_.head_dim;
}

Half* StepCache::value_row(std::size_t head, std::size_t token) {
  Head& own = heads_[head];
  return own.values.data() + (own.positions.size() - n_incoming_ + token) * shape_.head_dim;
}

StepHead StepCache::view(std::size_t head, std::size_t n) {
  Head& own = heads_[head];
  StepHead out;
  out.n = n;
  out.head_dim = shape_.head_dim;
  out.group = group_;
  out.keys = own.keys.data();
  out.values = own.values.data();
  out.positions = own.positions.data();
  out.seed = own.seed;
  out.n_before = n_entered_;
  out.fields = {own.fields.data(), stride_};
  return out;
}

void StepCache::observe(std::size_t head, float* attention, std::size_t stride) {
  const std::size_t n_before = size(head) - n_incoming_;
  for (std::size_t t = 0; t < n_incoming_; ++t) {
    StepHead step = view(head, n_before + t + 1);
    step.n_before = n_entered_ + t;
    float* rows = attention + t * group_ * stride;
    // Logits of 1e9 and more are further from their rounded log-sum-exp than an exponential bears;
    // attention stays a probability all the same.
    for (std::size_t g = 0; g < group_; ++g)
      for (std::size_t i = 0; i < step.n; ++i)
        rows[g * stride + i] = std::clamp(rows[g * stride + i], 0.0f, 1.0f);
    step.attention = rows;
    step.attention_stride = stride;
    rules_->scorer->enter(step, step.n - 1);
    rules_->scorer->observe(step);
    if (rules_->merger == nullptr) continue;
    step.fields = step.fields.from(rules_->scorer->n_fields());
    rules_->merger->observe(step);
  }
}

bool StepCache::is_protected(std::int32_t position) const {
  const Protection& protection = rules_->protection;
  const auto next = static_cast<std::size_t>(next_position_);
  const auto token = static_cast<std::size_t>(position);
  return token < protection.n_sinks || token + protection.n_recent >= next;
}

void StepCache::add_scores(std::size_t head) {
  const std::size_t n = size(head);
  rules_->scorer->importance(view(head, n), std::span(scores_).first(n));
  for (std::size_t i = 0; i < n; ++i) sums_[i] += static_cast<double>(scores_[i]);
}

std::size_t StepCache::lowest(std::size_t head) const {
  const std::vector<std::int32_t>& positions = heads_[head].positions;
  std::size_t found = positions.size();
  for (std::size_t i = 0; i < positions.size(); ++i) {
    if (is_protected(positions[i])) continue;
    if (found == positions.size() || sums_[i] < sums_[found] ||
        (sums_[i] == sums_[found] && positions[i] > positions[found]))
      found = i;
  }
  PRECIS_CHECK(found < positions.size(), "all of ", positions.size(), " entries are protected");
  return found;
}

void StepCache::evict(std::size_t head, std::size_t slot) {
  Head& own = heads_[head];
  if (rules_->merger != nullptr) {
    StepHead step = view(head, size(head));
    step.fields = step.fields.from(rules_->scorer->n_fields());
    rules_->merger->merge(step, slot);
  }
  const std::size_t last = own.positions.size() - 1;
  const std::size_t width = shape_.head_dim;
  if (slot != last) {
    std::copy_n(own.keys.data() + last * width, width, own.keys.data() + slot * width);
    std::copy_n(own.values.data() + last * width, width, own.values.data() + slot * width);
    own.positions[slot] = own.positions[last];
    for (std::size_t f = 0; f < rules_->n_fields(); ++f)
      own.fields[f * stride_ + slot] = own.fields[f * stride_ + last];
  }
  own.positions.resize(last);
  own.keys.resize(last * width);
  own.values.resize(last * width);
}

void StepCache::commit() {
  next_position_ += static_cast<std::int32_t>(n_incoming_);
  n_entered_ += n_incoming_;
  n_incoming_ = 0;
  if (rules_->same_for_all_heads) {
    // All heads began with the same tokens and do the same, so a slot is the same token in all.
    while (size(0) > heads_[0].capacity) {
      std::fill(sums_.begin(), sums_.end(), 0.0);
      for (std::size_t h = 0; h < heads_.size(); ++h) add_scores(h);
      const std::size_t slot = lowest(0);
      const std::int32_t position = heads_[0].positions[slot];
      for (std::size_t h = 0; h < heads_.size(); ++h) {
        PRECIS_CHECK(heads_[h].positions[slot] == position, "head ", h, " has ",
                     heads_[h].positions[slot], " where head 0 has ", position);
        evict(h, slot);
      }
    }
    return;
  }
  for (std::size_t h = 0; h < heads_.size(); ++h)
    while (size(h) > heads_[h].capacity) {
      std::fill(sums_.begin(), sums_.end(), 0.0);
      add_scores(h);
      evict(h, lowest(h));
    }
}

void StepCache::drop() {
  for (Head& head : heads_) {
    if (n_incoming_ == 0) break;
    const std::size_t n = head.positions.size() - n_incoming_;
    head.positions.resize(n);
    head.keys.resize(n * shape_.head_dim);
    head.values.resize(n * shape_.head_dim);
    std::copy(head.fields_before.begin(), head.fields_before.end(), head.fields.begin());
  }
  n_incoming_ = 0;
}

}  // namespace precis
