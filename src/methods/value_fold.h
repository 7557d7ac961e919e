// Merging as a weighted mean of values: kept tokens take in evicted ones, keys stay.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "compress/stage.h"

namespace precis {

// An evicted token on its way into a kept one.
struct Arrival {
  std::uint32_t token = 0;
  std::uint32_t slot = 0;  // index into HeadPlan::kept
  float weight = 0;        // >= 0
};

// Per slot, the sum of the weights that arrive there, in the order of the arrivals.
std::vector<float> arrived_weights(std::size_t n_kept, std::span<const Arrival> arrivals);

// v_i <- (own_i v_i + sum w_j v_j) / (own_i + sum w_j) where the sum of the arriving weights is
// above 0; other values keep their bits. own is [kept], >= 0; arrived as arrived_weights() gives
// it. Mass ratios are 1, and n_routed and the like 0, for the caller to fill in.
HeadMerge fold_values(const HeadView& head, const HeadPlan& plan, std::span<const float> own,
                      std::span<const Arrival> arrivals, std::span<const float> arrived);

// Calls visit(token, slot) for every evicted token in order, slot being that of the next kept token
// or kept.size() if there is none.
template <class Visit>
void visit_evicted(std::size_t n_tokens, const HeadPlan& plan, Visit visit) {
  std::size_t slot = 0;
  for (std::uint32_t token = 0; token < n_tokens; ++token) {
    if (slot < plan.kept.size() && plan.kept[slot] == token)
      ++slot;
    else
      visit(token, slot);
  }
}

}  // namespace precis
