// Ada-KV: Feng, Lv, Cao, Xie, Zhou, "Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget
// Allocation for Efficient LLM Inference", arXiv 2407.11550, algorithm 1: the budget of a layer is
// shared by its heads. The best entries of all heads together are kept, but each head is sure of a
// floor.
//
//   select=adakv   floor alpha of the mean budget per head, beside the protected tokens (the
//                  authors' code takes it of the budget without the window, too)
//   select=layer   floor of a fixed number of entries per head, beside the protected tokens: a
//                  plain floor of 8 was worth more than any learned allocation where budgets pooled
//                  over heads left half of them empty (zengxyyu/VariKV, RESULTS_ABLATION.md)
//
// Deviation: alpha is 0.2, as in kvpress and the paper's text; the authors' example runs use 0.5.
// Deviation: a KV head has one budget. The authors' first code has one per query head.
// Deviation: the preset scores with SnapKV at this project's defaults (window 32, kernel 7, max).
#include <algorithm>
#include <cmath>

#include "compress/method.h"
#include "methods/pooled_tokens.h"

namespace precis {

void register_adakv(Registry& registry);

namespace {

struct AdaParams : ProtectionParams {
  double alpha = 0.2;

  template <class V>
  void fields(V&& v) {
    ProtectionParams::fields(v);
    v("alpha", alpha, 0, 1, "part of the mean budget that every head is sure of");
  }

  std::size_t floor_of(std::size_t per_head) const {
    return static_cast<std::size_t>(std::floor(alpha * static_cast<double>(per_head)));
  }
  std::size_t fixed_floor() const { return 0; }
};

struct LayerParams : ProtectionParams {
  int floor = 8;

  template <class V>
  void fields(V&& v) {
    ProtectionParams::fields(v);
    v("floor", floor, 0, 1 << 20, "entries that every head is sure of");
  }

  std::size_t floor_of(std::size_t per_head) const { return std::min(fixed_floor(), per_head); }
  std::size_t fixed_floor() const { return static_cast<std::size_t>(floor); }
};

template <class Params>
class PooledSelector final : public Selector {
 public:
  explicit PooledSelector(const Params& params) : params_(params) {}

  Protection protection() const override { return params_.protection(); }
  std::size_t floor() const override { return params_.fixed_floor(); }

  std::vector<HeadPlan> select(const LayerTable& table) const override {
    const std::vector<Tokens> kept = pooled_tokens(table, params_.floor_of(open_entries(table)));
    std::vector<HeadPlan> plans(table.n_kv_heads);
    for (std::size_t h = 0; h < plans.size(); ++h) {
      plans[h].kept = with_protected(table, kept[h]);
      plans[h].targets = plans[h].kept;
    }
    return plans;
  }

 private:
  Params params_;
};

}  // namespace

void register_adakv(Registry& registry) {
  const std::string paper = "arXiv 2407.11550";
  registry.add_stage<PooledSelector<AdaParams>, AdaParams>(
      StageKind::kSelect, "adakv", paper,
      "the best entries of all KV heads of a layer, with a floor relative to the budget");
  registry.add_stage<PooledSelector<LayerParams>, LayerParams>(
      StageKind::kSelect, "layer", paper,
      "the best entries of all KV heads of a layer, with a floor in entries");
  registry.add_preset({"adakv", "score=snapkv select=adakv(recent=32,sinks=0)", paper,
                       "Ada-KV over SnapKV: heads of a layer share its budget"});
}

}  // namespace precis
