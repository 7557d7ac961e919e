#include "compress/layer_draft.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/half.h"
#include "kernels/rows.h"

namespace precis {
namespace {

// Calls put(keys, values, count) with the kept rows of one head, at most kGroupEntries at a time,
// as f32. Rows that were not merged are exactly what is stored.
template <class Put>
void gather(const EntryView& from, std::size_t width, const HeadPlan& plan, const HeadMerge* merge,
            const Put& put) {
  static const HeadMerge kNothing;
  const HeadMerge& merged = merge == nullptr ? kNothing : *merge;
  std::vector<float> group(2 * kGroupEntries * width);
  float* values = group.data() + kGroupEntries * width;
  const auto take = [&](const std::vector<std::uint8_t>& changed, const std::vector<float>& rows,
                        const Half* stored, std::size_t entry, float* row) {
    if (!changed.empty() && changed[entry] != 0)
      std::copy_n(rows.data() + entry * width, width, row);
    else
      convert_rows(stored + plan.kept[entry] * width, row, width);
  };
  for (std::size_t start = 0; start < plan.kept.size(); start += kGroupEntries) {
    const std::size_t count = std::min(kGroupEntries, plan.kept.size() - start);
    for (std::size_t i = 0; i < count; ++i) {
      take(merged.keys_changed, merged.keys, from.keys, start + i, group.data() + i * width);
      take(merged.changed, merged.values, from.values, start + i, values + i * width);
    }
    put(group.data(), values, count);
  }
}

// A merged row stays finite in f16, as in packed rows.
void saturate(float* row, std::size_t n) {
  constexpr float kLargestHalf = 65504.0f;
  for (std::size_t i = 0; i < n; ++i) row[i] = std::clamp(row[i], -kLargestHalf, kLargestHalf);
}

template <class T>
void keep_slots(std::vector<T>& list, std::span<const std::size_t> slots) {
  if (list.empty()) return;
  std::vector<T> kept;
  kept.reserve(slots.size());
  for (const std::size_t slot : slots) kept.push_back(list[slot]);
  list = std::move(kept);
}

// Moves the given rows to the front; slots ascend.
void keep_rows(std::vector<Half>& rows, std::size_t width, std::span<const std::size_t> slots) {
  for (std::size_t i = 0; i < slots.size(); ++i)
    std::copy_n(rows.data() + slots[i] * width, width, rows.data() + i * width);
  rows.resize(slots.size() * width);
  // What was given up is memory for the layers that it was given up for; not every few rows.
  if (rows.capacity() > rows.size() + rows.size() / 4) rows.shrink_to_fit();
}

}  // namespace

LayerDraft::LayerDraft(const TailRows& dense, std::span<const HeadPlan> plans,
                       std::span<const HeadMerge> merges, const RowTypes& rows, bool is_open,
                       const Placing& placing, Executor& executor, const CancelFlag* cancel)
    : shape_(dense.shape()),
      first_position_(dense.first_position()),
      n_tokens_(dense.size()),
      placing_(placing),
      rows_(rows),
      is_open_(is_open),
      is_merged_(!merges.empty()),
      entries_(plans.size()),
      heads_(plans.size()),
      open_(is_open ? plans.size() : 0) {
  executor.run(plans.size(), [&](std::size_t h, std::size_t) {
    throw_if_cancelled(cancel);
    const HeadPlan& plan = plans[h];
    const std::size_t width = shape_.head_dim;
    entries_[h].tokens = plan.kept;
    if (is_merged_) {
      entries_[h].mass_ratio = merges[h].mass_ratio;
      entries_[h].n_merged = merges[h].n_merged;
    }
    FrozenLayer::Head& head = heads_[h];
    for (const std::uint32_t token : plan.kept)
      head.positions.push_back(first_position_ + static_cast<std::int32_t>(token));
    const HeadMerge* merge = is_merged_ ? &merges[h] : nullptr;
    if (is_open_) {
      open_[h].keys.resize(plan.kept.size() * width);
      open_[h].values.resize(plan.kept.size() * width);
      std::size_t at = 0;
      gather(dense.head(h), width, plan, merge, [&](float* keys, float* values, std::size_t count) {
        saturate(keys, count * width);
        saturate(values, count * width);
        convert_rows(keys, open_[h].keys.data() + at, count * width);
        convert_rows(values, open_[h].values.data() + at, count * width);
        at += count * width;
      });
      return;
    }
    head.rows = PackedList(rows_, width);
    head.rows.reserve(plan.kept.size());
    const std::vector<std::int32_t> places = places_of(h);
    gather(dense.head(h), width, plan, merge,
           [&](float* keys, const float* values, std::size_t count) {
             turn(h, head.rows.size(), count, keys, places);
             head.rows.append(keys, values, count);
           });
  });
}

std::vector<std::int32_t> LayerDraft::places_of(std::size_t head) const {
  if (placing_.positioner == nullptr) return {};
  const std::vector<std::uint32_t>& kept = entries_[head].tokens;
  std::vector<std::int32_t> places = placing_.positioner->places(kept, n_tokens_);
  PRECIS_CHECK(places.size() == n_tokens_, places.size(), " vs ", n_tokens_);
  for (std::size_t i = 1; i < kept.size(); ++i)
    PRECIS_CHECK(places[kept[i - 1]] < places[kept[i]], "entries ", i - 1, " and ", i, " at ",
                 places[kept[i - 1]], " and ", places[kept[i]]);
  return places;
}

void LayerDraft::turn(std::size_t head, std::size_t first, std::size_t count, float* keys,
                      std::span<const std::int32_t> places) const {
  if (places.empty() || placing_.rope == nullptr) return;
  RopeTurn turn(*placing_.rope);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t token = entries_[head].tokens[first + i];
    turn.set_delta(places[token] - static_cast<std::int64_t>(token));
    turn.apply(keys + i * shape_.head_dim);
  }
}

std::size_t LayerDraft::next_place() const {
  if (placing_.positioner == nullptr) return n_tokens_;
  std::size_t next = 0;
  for (std::size_t h = 0; h < entries_.size(); ++h) {
    const std::vector<std::uint32_t>& kept = entries_[h].tokens;
    if (!kept.empty())
      next = std::max(next, static_cast<std::size_t>(places_of(h)[kept.back()]) + 1);
  }
  return next;
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
             heads_[h].positions.size() * sizeof(heads_[h].positions[0]) +
             heads_[h].bias.size() * sizeof(heads_[h].bias[0]) + heads_[h].residual_rows.bytes() +
             heads_[h].residual_bias.size() * sizeof(heads_[h].residual_bias[0]);
    if (is_open_) bytes += (open_[h].keys.size() + open_[h].values.size()) * sizeof(Half);
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
  PRECIS_CHECK(is_open_, "entries of a closed list are given up");
  for (std::size_t h = 0; h < heads_.size(); ++h) {
    HeadEntries& own = entries_[h];
    std::vector<std::size_t> slots;
    for (std::size_t i = 0, k = 0; i < own.tokens.size(); ++i) {
      while (k < plans[h].kept.size() && plans[h].kept[k] < own.tokens[i]) ++k;
      if (k < plans[h].kept.size() && plans[h].kept[k] == own.tokens[i]) slots.push_back(i);
    }
    if (slots.size() == own.tokens.size()) continue;
    keep_rows(open_[h].keys, shape_.head_dim, slots);
    keep_rows(open_[h].values, shape_.head_dim, slots);
    keep_slots(heads_[h].positions, slots);
    keep_slots(heads_[h].bias, slots);
    keep_slots(own.tokens, slots);
    keep_slots(own.mass_ratio, slots);
    keep_slots(own.n_merged, slots);
  }
}

void LayerDraft::set_biases(std::vector<std::vector<float>> biases) {
  PRECIS_CHECK(biases.size() == heads_.size(), biases.size(), " vs ", heads_.size());
  for (std::size_t h = 0; h < heads_.size(); ++h) heads_[h].bias = std::move(biases[h]);
}

void LayerDraft::set_residuals(std::span<const ResidualEntries> residuals, Executor& executor) {
  PRECIS_CHECK(residuals.size() == heads_.size(), residuals.size(), " vs ", heads_.size());
  PRECIS_CHECK(!is_open_, "entries that summarise what is not kept, while that may still change");
  executor.run(heads_.size(), [&](std::size_t h, std::size_t) {
    const ResidualEntries& from = residuals[h];
    if (from.size() == 0) return;
    FrozenLayer::Head& head = heads_[h];
    head.residual_rows = PackedList(rows_, shape_.head_dim);
    head.residual_rows.reserve(from.size());
    head.residual_rows.append(from.keys.data(), from.values.data(), from.size());
    head.residual_bias = from.bias;
    head.gate = from.gate;
  });
}

FrozenLayer LayerDraft::freeze(Executor& executor) {
  executor.run(open_.size(), [&](std::size_t h, std::size_t) {
    const std::size_t n = entries_[h].tokens.size();
    heads_[h].rows = PackedList(rows_, shape_.head_dim);
    heads_[h].rows.reserve(n);
    const std::vector<std::int32_t> places = places_of(h);
    const std::size_t width = shape_.head_dim;
    std::vector<float> keys(kGroupEntries * width);
    std::vector<float> values(kGroupEntries * width);
    for (std::size_t at = 0; at < n; at += kGroupEntries) {
      const std::size_t count = std::min(kGroupEntries, n - at);
      convert_rows(open_[h].keys.data() + at * width, keys.data(), count * width);
      convert_rows(open_[h].values.data() + at * width, values.data(), count * width);
      turn(h, at, count, keys.data(), places);
      heads_[h].rows.append(keys.data(), values.data(), count);
    }
    open_[h] = {};
  });
  open_.clear();
  return {shape_, std::move(heads_), first_position_};
}

}  // namespace precis
