#include "methods/value_fold.h"

#include "kernels/rows.h"

namespace precis {

std::vector<float> arrived_weights(std::size_t n_kept, std::span<const Arrival> arrivals) {
  std::vector<float> arrived(n_kept, 0.0f);
  for (const Arrival& arrival : arrivals) arrived[arrival.slot] += arrival.weight;
  return arrived;
}

HeadMerge fold_values(const HeadView& head, const HeadPlan& plan, std::span<const float> own,
                      std::span<const Arrival> arrivals, std::span<const float> arrived) {
  const std::size_t width = head.head_dim;
  const std::size_t n_kept = plan.kept.size();
  HeadMerge out;
  out.values.assign(n_kept * width, 0.0f);
  out.changed.assign(n_kept, 0);
  out.mass_ratio.assign(n_kept, 1.0f);
  out.n_merged.assign(n_kept, 0);
  std::vector<float> value(width);
  // As a weighted mean: the weights w / (sum of w) stay accurate where the products w v would be
  // subnormal.
  const auto add = [&](std::size_t token, std::size_t slot, float weight) {
    convert_rows(head.entries.values + token * width, value.data(), width);
    float* sum = out.values.data() + slot * width;
    for (std::size_t c = 0; c < width; ++c) sum[c] += weight * value[c];
  };
  for (std::size_t i = 0; i < n_kept; ++i) {
    if (!(arrived[i] > 0.0f)) continue;
    out.changed[i] = 1;
    add(plan.kept[i], i, own[i] / (own[i] + arrived[i]));
  }
  for (const Arrival& arrival : arrivals) {
    const std::size_t i = arrival.slot;
    if (out.changed[i] == 0) continue;
    add(arrival.token, i, arrival.weight / (own[i] + arrived[i]));
    out.n_merged[i] += arrival.weight > 0.0f ? 1 : 0;
  }
  return out;
}

}  // namespace precis
