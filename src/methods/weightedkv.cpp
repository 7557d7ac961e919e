// WeightedKV: "WeightedKV: Attention Scores Weighted Key-Value Cache Merging for Large Language
// Models", arXiv 2503.01330 (ICASSP 2025): the key of the token with the lowest mean accumulated
// attention is dropped, and its value is merged into the right neighbour, weighed by accumulated
// attention a:
//
//   v_{j+1} <- (a_j v_j + a_{j+1} v_{j+1}) / (a_j + a_{j+1})
//
// Keys stay, and there is no bias. The score is h2o(mean=visible).
//
// Cost: as h2o (see h2o.cpp), once for score and merge together.
//
// decode=step is the paper's rule, one token at a time, from the prompt's attention on.
//
// Deviation: the prompt is condensed in one shot. There a run of evicted tokens merges into the
//   next kept one, each with its own attention, which is what the paper's rule does from left to
//   right if a merged token takes over the attention; that is assumed, with decode=step too. What
//   is taken over counts in later merges and not in the score.
// Deviation: evicted tokens after the last kept one are dropped.
// Deviation: `cap` is for the prompt; decode=step merges every token.
// Deviation: 32 recent tokens are kept. The paper keeps about half of the cache recent, 4 sinks.
// Deviation: attention is summed over the query heads of a KV head.
#include <algorithm>

#include "compress/method.h"
#include "compress/step.h"
#include "methods/attention_rows.h"
#include "methods/value_fold.h"

namespace precis {

void register_weightedkv(Registry& registry);

namespace {

struct WeightedParams : AccumulationParams, CapParams {
  template <class V>
  void fields(V&& v) {
    AccumulationParams::fields(v);
    CapParams::fields(v);
  }
};

class WeightedMerger final : public Merger, public StepMerger {
 public:
  explicit WeightedMerger(const WeightedParams& params) : params_(params) {}

  std::size_t queries_needed(std::size_t n_tokens) const override {
    return params_.n_queries(n_tokens);
  }

  HeadMerge merge(HeadView& head, const HeadPlan& plan) const override {
    return fold_values(head, plan, fold_of(head, plan));
  }

  const StepMerger* step() const override { return this; }

  // a, with what was taken over.
  std::size_t n_fields() const override { return 1; }

  void carry(HeadView& head, std::span<const std::uint32_t> kept,
             const StepFields& fields) const override {
    HeadPlan plan;
    plan.kept.assign(kept.begin(), kept.end());
    const Fold fold = fold_of(head, plan);
    std::copy(fold.total.begin(), fold.total.end(), fields.row(0));
  }

  void observe(const StepHead& head) const override { add_attention(head, head.fields.row(0)); }

  void merge(const StepHead& head, std::size_t slot) const override {
    const std::size_t next = next_slot(head, head.positions[slot]);
    if (next == head.n) return;
    float* weights = head.fields.row(0);
    const float total = weights[slot] + weights[next];
    if (!(total > 0)) return;
    mix_rows(head.values + slot * head.head_dim, weights[slot] / total, weights[next] / total,
             head.values + next * head.head_dim, head.head_dim);
    weights[next] = total;
  }

 private:
  Fold fold_of(HeadView& head, const HeadPlan& plan) const {
    const std::span<const float> mass = head.window_mass(queries_needed(head.n_tokens));
    std::vector<Arrival> arrivals;
    visit_evicted(head.n_tokens, plan, [&](std::uint32_t token, std::size_t slot) {
      if (slot < plan.kept.size())
        arrivals.push_back({token, static_cast<std::uint32_t>(slot), mass[token]});
    });
    std::vector<float> own;
    for (const std::uint32_t token : plan.kept) own.push_back(mass[token]);
    cap_arrivals(arrivals, plan.kept.size(), params_.cap);
    return make_fold(std::move(own), std::move(arrivals));
  }

  WeightedParams params_;
};

}  // namespace

void register_weightedkv(Registry& registry) {
  const std::string paper = "arXiv 2503.01330";
  registry.add_stage<WeightedMerger, WeightedParams>(
      StageKind::kMerge, "weightedkv", paper,
      "merges evicted values into the next kept token, weighed by accumulated attention");
  registry.add_preset({"weightedkv",
                       "score=h2o(mean=visible) select=head(recent=32,sinks=4) merge=weightedkv",
                       paper, "WeightedKV in one shot: drops keys, merges values to the right"});
}

}  // namespace precis
