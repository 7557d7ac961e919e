#include "methods/value_fold.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/rows.h"

namespace precis {
namespace {

// Merged rows [kept, head_dim], 0 where nothing arrives.
std::vector<float> fold_rows(const HeadView& head, const HeadPlan& plan, const Fold& fold,
                             const Half* rows) {
  const std::size_t width = head.head_dim;
  std::vector<float> out(plan.kept.size() * width, 0.0f);
  std::vector<float> row(width);
  // As a weighted mean: the weights w / total stay accurate where the products w x would be
  // subnormal.
  const auto add = [&](std::size_t token, std::size_t slot, float weight) {
    convert_rows(rows + token * width, row.data(), width);
    float* sum = out.data() + slot * width;
    for (std::size_t c = 0; c < width; ++c) sum[c] += weight * row[c];
  };
  for (std::size_t i = 0; i < plan.kept.size(); ++i)
    if (fold.arrived[i] > 0.0f) add(plan.kept[i], i, fold.own[i] / fold.total[i]);
  for (const Arrival& arrival : fold.arrivals) {
    const std::size_t i = arrival.slot;
    if (fold.arrived[i] > 0.0f) add(arrival.token, i, arrival.weight / fold.total[i]);
  }
  // A mean of the largest halves may be a rounding above them.
  for (float& x : out) x = std::clamp(x, -kLargestHalf, kLargestHalf);
  return out;
}

std::vector<std::uint8_t> flag_changed(const Fold& fold) {
  std::vector<std::uint8_t> changed;
  for (const float weight : fold.arrived) changed.push_back(weight > 0.0f ? 1 : 0);
  return changed;
}

}  // namespace

void mix_rows(const Half* from, float weight, float own, Half* into, std::size_t width) {
  for (std::size_t c = 0; c < width; ++c) {
    const float mixed = weight * to_float(from[c]) + own * to_float(into[c]);
    into[c] = to_half(std::clamp(mixed, -kLargestHalf, kLargestHalf));
  }
}

void cap_arrivals(std::vector<Arrival>& arrivals, std::size_t n_kept, int cap,
                  std::span<const float> ranks) {
  if (cap == 0) return;
  PRECIS_CHECK(ranks.empty() || ranks.size() == arrivals.size(), ranks.size(), " ranks, ",
               arrivals.size(), " arrivals");
  const auto rank = [&](std::size_t k) { return ranks.empty() ? arrivals[k].weight : ranks[k]; };
  std::vector<std::vector<std::size_t>> by_slot(n_kept);
  for (std::size_t k = 0; k < arrivals.size(); ++k) by_slot[arrivals[k].slot].push_back(k);
  std::vector<std::uint8_t> stays(arrivals.size(), 1);
  for (std::vector<std::size_t>& queue : by_slot) {
    const auto most = static_cast<std::ptrdiff_t>(cap);
    if (most >= std::ssize(queue)) continue;
    std::nth_element(queue.begin(), queue.begin() + most, queue.end(),
                     [&](std::size_t a, std::size_t b) {
                       return rank(a) != rank(b) ? rank(a) > rank(b) : a < b;
                     });
    for (auto k = queue.begin() + most; k != queue.end(); ++k) stays[*k] = 0;
  }
  std::size_t n = 0;
  for (std::size_t k = 0; k < arrivals.size(); ++k)
    if (stays[k] != 0) arrivals[n++] = arrivals[k];
  arrivals.resize(n);
}

Fold make_fold(std::vector<float> own, std::vector<Arrival> arrivals) {
  Fold fold;
  fold.arrived.assign(own.size(), 0.0f);
  for (const Arrival& arrival : arrivals) fold.arrived[arrival.slot] += arrival.weight;
  for (std::size_t i = 0; i < own.size(); ++i) fold.total.push_back(own[i] + fold.arrived[i]);
  fold.own = std::move(own);
  fold.arrivals = std::move(arrivals);
  return fold;
}

HeadMerge fold_values(const HeadView& head, const HeadPlan& plan, const Fold& fold) {
  HeadMerge out;
  out.values = fold_rows(head, plan, fold, head.entries.values);
  out.changed = flag_changed(fold);
  out.mass_ratio.assign(plan.kept.size(), 1.0f);
  out.n_merged.assign(plan.kept.size(), 0);
  for (const Arrival& arrival : fold.arrivals) {
    if (!(arrival.weight > 0.0f)) continue;
    ++out.n_merged[arrival.slot];
    if (out.absorbed.empty() || out.absorbed.back() != arrival.token)
      out.absorbed.push_back(arrival.token);
  }
  out.n_routed = fold.arrivals.size();
  out.n_dropped = head.n_tokens - plan.kept.size() - fold.arrivals.size();
  return out;
}

void fold_keys(const HeadView& head, const HeadPlan& plan, const Fold& fold, HeadMerge& into) {
  into.keys = fold_rows(head, plan, fold, head.entries.keys);
  into.keys_changed = flag_changed(fold);
}

}  // namespace precis
