// Merging as a weighted mean: kept tokens take in evicted ones, their values and, where a method
// wants it, their keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "compress/stage.h"

namespace precis {

constexpr float kLargestHalf = 65504.0f;  // what merged rows must fit in

// An evicted token on its way into a kept one.
struct Arrival {
  std::uint32_t token = 0;
  std::uint32_t slot = 0;  // index into HeadPlan::kept
  float weight = 0;        // >= 0
};

// The parameter of mergers whose tokens may pile up on a few kept ones.
struct CapParams {
  int cap = 0;

  template <class V>
  void fields(V&& v) {
    v("cap", cap, 0, 1 << 20,
      "most evicted tokens that one kept token takes in, the weightiest first; 0: all");
  }
};

// Leaves of the arrivals of every slot the `cap` that rank highest, the earlier of equals, in their
// old order; all of them if cap is 0. ranks is [arrivals], or empty: the weights. What a method
// leaves out by weight is what its merged entry would have held least of; one that weighs all alike
// ranks by similarity.
void cap_arrivals(std::vector<Arrival>& arrivals, std::size_t n_kept, int cap,
                  std::span<const float> ranks = {});

// Which tokens merge, and how much of each: row x_i of entry i becomes
// (own_i x_i + sum w_j x_j) / total_i where the sum of the arriving weights is above 0.
struct Fold {
  std::vector<float> own;         // [kept], >= 0
  std::vector<Arrival> arrivals;  // ascending by token
  std::vector<float> arrived;     // [kept], the sum of the weights that arrive
  std::vector<float> total;       // [kept]; > 0 where arrived is
};

// The weighted mean: total = own + arrived. Sums run in the order of the arrivals.
Fold make_fold(std::vector<float> own, std::vector<Arrival> arrivals);

// Values that nothing arrives at keep their bits; merged ones fit in f16. Evicted tokens that are
// in no arrival are dropped. Mass ratios are 1 and n_floored is 0, for the caller to fill in.
HeadMerge fold_values(const HeadView& head, const HeadPlan& plan, const Fold& fold);
// Adds the same of the keys.
void fold_keys(const HeadView& head, const HeadPlan& plan, const Fold& fold, HeadMerge& into);

// One merge of values in f16: into becomes weight * from + own * into, cut to what f16 holds. For
// decode=step.
void mix_rows(const Half* from, float weight, float own, Half* into, std::size_t width);

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
