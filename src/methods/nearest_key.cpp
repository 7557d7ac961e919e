#include "methods/nearest_key.h"

#include <algorithm>

#include "kernels/rows.h"
#include "methods/value_fold.h"

namespace precis {
namespace {

constexpr std::size_t kLanes = 16;  // targets that are compared at once

// The token's key divided by its length, or zeros.
void unit_key(const HeadView& head, std::size_t token, float* out) {
  const Half* key = head.entries.keys + token * head.head_dim;
  float norm = 0;
  row_norms(key, 1, head.head_dim, &norm);
  convert_rows(key, out, head.head_dim);
  for (std::size_t c = 0; c < head.head_dim; ++c) out[c] = norm > 0.0f ? out[c] / norm : 0.0f;
}

// Unit keys of the targets in blocks of kLanes, [block, channel, lane]; missing ones are zeros.
std::vector<float> interleave_keys(const HeadView& head,
                                   const std::vector<std::uint32_t>& targets) {
  const std::size_t width = head.head_dim;
  std::vector<float> keys((targets.size() + kLanes - 1) / kLanes * kLanes * width, 0.0f);
  std::vector<float> row(width);
  for (std::size_t i = 0; i < targets.size(); ++i) {
    unit_key(head, targets[i], row.data());
    float* lane = keys.data() + i / kLanes * kLanes * width + i % kLanes;
    for (std::size_t c = 0; c < width; ++c) lane[c * kLanes] = row[c];
  }
  return keys;
}

}  // namespace

float row_cosine(const Half* a, const Half* b, std::size_t width) {
  float norm_a = 0;
  float norm_b = 0;
  row_norms(a, 1, width, &norm_a);
  row_norms(b, 1, width, &norm_b);
  const float norms = norm_a * norm_b;
  return norms > 0.0f ? std::clamp(dot(a, b, width) / norms, -1.0f, 1.0f) : 0.0f;
}

float key_cosine(const HeadView& head, std::size_t a, std::size_t b) {
  const Half* keys = head.entries.keys;
  return row_cosine(keys + a * head.head_dim, keys + b * head.head_dim, head.head_dim);
}

NearestKeys nearest_keys(const HeadView& head, const HeadPlan& plan, std::size_t n_sinks) {
  const std::size_t width = head.head_dim;
  std::vector<std::uint32_t> targets;
  std::vector<std::uint32_t> target_slots;
  std::size_t slot = 0;
  for (const std::uint32_t token : plan.targets) {
    while (plan.kept[slot] != token) ++slot;
    if (token < n_sinks) continue;
    targets.push_back(token);
    target_slots.push_back(static_cast<std::uint32_t>(slot));
  }
  const std::vector<float> keys = interleave_keys(head, targets);
  std::vector<float> key(width);
  NearestKeys out;
  visit_evicted(head.n_tokens, plan, [&](std::uint32_t token, std::size_t) {
    if (token % 64 == 0) throw_if_cancelled(head.cancel);
    unit_key(head, token, key.data());
    std::uint32_t best_slot = NearestKeys::kNone;
    float best = 0.0f;
    for (std::size_t first = 0; first < targets.size(); first += kLanes) {
      const float* block = keys.data() + first * width;
      float cosines[kLanes] = {};
      for (std::size_t c = 0; c < width; ++c)
        for (std::size_t i = 0; i < kLanes; ++i) cosines[i] += key[c] * block[c * kLanes + i];
      for (std::size_t i = 0; i < std::min(kLanes, targets.size() - first); ++i)
        if (best_slot == NearestKeys::kNone || cosines[i] > best) {
          best = cosines[i];
          best_slot = target_slots[first + i];
        }
    }
    out.tokens.push_back(token);
    out.slots.push_back(best_slot);
    out.cosines.push_back(best);
  });
  return out;
}

}  // namespace precis
