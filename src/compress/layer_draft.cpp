#include "compress/layer_draft.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "kernels/rows.h"

namespace precis {
namespace {

// The kept rows of one head, packed from f32: a merged row is rounded once. Others keep their bits
// in f16.
FrozenLayer::Head gather(const TailRows& dense, std::size_t head, const HeadPlan& plan,
                         const HeadMerge* merge, const RowTypes& rows) {
  const std::size_t width = dense.shape().head_dim;
  const EntryView from = dense.head(head);
  const std::size_t n = plan.kept.size();
  FrozenLayer::Head out;
  out.rows = PackedList(rows, width);
  out.rows.reserve(n);
  out.positions.reserve(n);
  std::vector<float> group(2 * kGroupEntries * width);
  float* values = group.data() + kGroupEntries * width;
  const auto take = [&](const std::vector<std::uint8_t>& changed, const std::vector<float>& merged,
                        const Half* stored, std::size_t entry, float* row) {
    if (!changed.empty() && changed[entry] != 0)
      std::copy_n(merged.data() + entry * width, width, row);
    else
      convert_rows(stored + plan.kept[entry] * width, row, width);
  };
  static const HeadMerge kNothing;
  const HeadMerge& merged = merge == nullptr ? kNothing : *merge;
  for (std::size_t start = 0; start < n; start += kGroupEntries) {
    const std::size_t count = std::min(kGroupEntries, n - start);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t entry = start + i;
      take(merged.keys_changed, merged.keys, from.keys, entry, group.data() + i * width);
      take(merged.changed, merged.values, from.values, entry, values + i * width);
      out.positions.push_back(dense.first_position() + static_cast<std::int32_t>(plan.kept[entry]));
    }
    out.rows.append(group.data(), values, count);
  }
  return out;
}

// The given entries of a list, stored as `rows`.
PackedList repacked(const PackedList& from, std::span<const std::size_t> slots,
                    const RowTypes& rows) {
  const std::size_t width = from.head_dim();
  PackedList out(rows, width);
  out.reserve(slots.size());
  std::vector<float> group(2 * kGroupEntries * width);
  float* values = group.data() + kGroupEntries * width;
  for (std::size_t start = 0; start < slots.size(); start += kGroupEntries) {
    const std::size_t count = std::min(kGroupEntries, slots.size() - start);
    for (std::size_t i = 0; i < count; ++i)
      from.unpack(slots[start + i], 1, group.data() + i * width, values + i * width);
    out.append(group.data(), values, count);
  }
  return out;
}

template <class T>
void keep_slots(std::vector<T>& list, std::span<const std::size_t> slots) {
  if (list.empty()) return;
  std::vector<T> kept;
  kept.reserve(slots.size());
  for (const std::size_t slot : slots) kept.push_back(list[slot]);
  list = std::move(kept);
}

}  // namespace

LayerDraft::LayerDraft(const TailRows& dense, std::span<const HeadPlan> plans,
                       std::span<const HeadMerge> merges, const RowTypes& rows, Executor& executor,
                       const CancelFlag* cancel)
    : shape_(dense.shape()),
      first_position_(dense.first_position()),
      is_merged_(!merges.empty()),
      entries_(plans.size()),
      heads_(plans.size()) {
  executor.run(plans.size(), [&](std::size_t h, std::size_t) {
    throw_if_cancelled(cancel);
    entries_[h].tokens = plans[h].kept;
    if (is_merged_) {
      entries_[h].mass_ratio = merges[h].mass_ratio;
      entries_[h].n_merged = merges[h].n_merged;
    }
    heads_[h] = gather(dense, h, plans[h], is_merged_ ? &merges[h] : nullptr, rows);
  });
}

std::size_t LayerDraft::n_entries() const {
  std::size_t n = 0;
  for (const HeadEntries& head : entries_) n += head.tokens.size();
  return n;
}

std::size_t LayerDraft::bytes() const {
  std::size_t bytes = 0;
  for (std::size_t h = 0; h < heads_.size(); ++h) {
    const HeadEntries& own = entries_[h];
    bytes += heads_[h].rows.bytes() + own.tokens.size() * sizeof(own.tokens[0]) +
             own.mass_ratio.size() * sizeof(own.mass_ratio[0]) +
             own.n_merged.size() * sizeof(own.n_merged[0]) +
             heads_[h].positions.size() * sizeof(heads_[h].positions[0]);
  }
  return bytes;
}

std::vector<std::vector<float>> LayerDraft::mass_ratios() const {
  std::vector<std::vector<float>> ratios;
  for (const HeadEntries& head : entries_)
    if (is_merged_) ratios.push_back(head.mass_ratio);
  return ratios;
}

std::vector<float> LayerDraft::masked(const std::vector<float>& scores,
                                      std::size_t n_tokens) const {
  std::vector<float> out(scores.size(), std::numeric_limits<float>::lowest());
  for (std::size_t h = 0; h < entries_.size(); ++h)
    for (const std::uint32_t token : entries_[h].tokens)
      out[h * n_tokens + token] = scores[h * n_tokens + token];
  return out;
}

void LayerDraft::drop_to(std::span<const HeadPlan> plans) {
  for (std::size_t h = 0; h < heads_.size(); ++h) {
    HeadEntries& own = entries_[h];
    std::vector<std::size_t> slots;
    for (std::size_t i = 0, k = 0; i < own.tokens.size(); ++i) {
      while (k < plans[h].kept.size() && plans[h].kept[k] < own.tokens[i]) ++k;
      if (k < plans[h].kept.size() && plans[h].kept[k] == own.tokens[i]) slots.push_back(i);
    }
    if (slots.size() == own.tokens.size()) continue;
    FrozenLayer::Head& head = heads_[h];
    PRECIS_CHECK(head.rows.types() == RowTypes{}, "rows of a list that is closed are given up");
    head.rows = repacked(head.rows, slots, RowTypes{});
    keep_slots(head.positions, slots);
    keep_slots(head.bias, slots);
    keep_slots(own.tokens, slots);
    keep_slots(own.mass_ratio, slots);
    keep_slots(own.n_merged, slots);
  }
}

void LayerDraft::set_biases(std::vector<std::vector<float>> biases) {
  PRECIS_CHECK(biases.size() == heads_.size(), biases.size(), " vs ", heads_.size());
  for (std::size_t h = 0; h < heads_.size(); ++h) heads_[h].bias = std::move(biases[h]);
}

FrozenLayer LayerDraft::freeze(const RowTypes& rows, Executor& executor) {
  executor.run(heads_.size(), [&](std::size_t h, std::size_t) {
    FrozenLayer::Head& head = heads_[h];
    if (head.rows.types() == rows) return;
    std::vector<std::size_t> all(head.rows.size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
    head.rows = repacked(head.rows, all, rows);
  });
  return {shape_, std::move(heads_), first_position_};
}

}  // namespace precis
