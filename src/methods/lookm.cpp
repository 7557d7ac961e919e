// LOOK-M: Wan, Wu, Liu, Huang, Zhu, Jin, Wang, Yuan, "LOOK-M: Look-Once Optimization in KV Cache
// for Efficient Multimodal Long-Context Inference", arXiv 2406.18139 (github.com/SUSTechBruce/
// LOOK-M; also merge_kv of github.com/Zefan-Cai/KVCache-Factory): each evicted token e goes to the
// kept token t with the most similar key, u_e = cos(k_e, k_t). Keys and values merge alike, n
// tokens arriving at t:
//
//   mode=average   x_t <- (x_t + sum x_e) / (1 + n)
//   mode=pivot     x_t <- (x_t + sum (x_t + x_e) / 2) / (1 + n)
//   mode=weighted  x_t <- (x_t + sum w_e x_e) / (1 + sum w_e), w_e = (u_e + 1) / 2, of
//                  KVCache-Factory
//   mode=cosine    x_t <- (x_t + sum u_e x_e) / (1 + n), the weighted form of LOOK-M's own code
//
// There is no bias. The formulas are those of the released codes.
//
// Cost: as h2o (see h2o.cpp), and every evicted key is compared with every kept one: quadratic in
// the prompt.
//
// Deviation: nothing tells text from images here, so text is not kept first.
// Deviation: all evicted tokens merge, in every mode. LOOK-M's code has forms of average and
//   weighted that leave out those below the mean cosine; that is merge=d2o(weights=mean).
// Deviation: in KVCache-Factory w_e is at least 1e-6. A negative cosine weighs 0 in mode=cosine.
// Deviation: 32 recent and 4 first tokens are kept; the code's recent share is a parameter.
// Deviation: cap, off by default, leaves out the least similar arrivals of a kept token.
#include <algorithm>

#include "compress/method.h"
#include "methods/nearest_key.h"
#include "methods/value_fold.h"

namespace precis {

void register_lookm(Registry& registry);

namespace {

struct LookmParams : CapParams {
  std::string mode = "pivot";
  int sinks = 0;

  template <class V>
  void fields(V&& v) {
    v("mode", mode, {"average", "pivot", "weighted", "cosine"},
      "mean of all, half of it the target, weighed by (cosine + 1) / 2, or cosines over the count");
    v("sinks", sinks, 0, 1 << 20, "first tokens, which never receive");
    CapParams::fields(v);
  }
};

class LookmMerger final : public Merger {
 public:
  explicit LookmMerger(const LookmParams& params) : params_(params) {}

  std::size_t queries_needed(std::size_t) const override { return 0; }

  HeadMerge merge(HeadView& head, const HeadPlan& plan) const override {
    const NearestKeys nearest = nearest_keys(head, plan, static_cast<std::size_t>(params_.sinks));
    std::vector<Arrival> arrivals;
    std::vector<float> cosines;
    for (std::size_t k = 0; k < nearest.tokens.size(); ++k) {
      if (nearest.slots[k] == NearestKeys::kNone) continue;
      arrivals.push_back({nearest.tokens[k], nearest.slots[k], weight_of(nearest.cosines[k])});
      cosines.push_back(nearest.cosines[k]);
    }
    cap_arrivals(arrivals, plan.kept.size(), params_.cap, cosines);
    std::vector<float> counts(plan.kept.size(), 0.0f);
    for (const Arrival& arrival : arrivals) counts[arrival.slot] += 1.0f;
    std::vector<float> own(plan.kept.size(), 1.0f);
    if (params_.mode == "pivot")
      for (std::size_t i = 0; i < own.size(); ++i) own[i] += counts[i] / 2;
    Fold fold = make_fold(std::move(own), std::move(arrivals));
    if (params_.mode == "cosine")
      for (std::size_t i = 0; i < counts.size(); ++i) fold.total[i] = 1.0f + counts[i];
    HeadMerge out = fold_values(head, plan, fold);
    fold_keys(head, plan, fold, out);
    return out;
  }

 private:
  float weight_of(float cosine) const {
    if (params_.mode == "average") return 1.0f;
    if (params_.mode == "pivot") return 0.5f;
    return std::max(params_.mode == "weighted" ? (cosine + 1) / 2 : cosine, 0.0f);
  }

  LookmParams params_;
};

}  // namespace

void register_lookm(Registry& registry) {
  const std::string paper = "arXiv 2406.18139";
  registry.add_stage<LookmMerger, LookmParams>(
      StageKind::kMerge, "lookm", paper,
      "merges keys and values of all evicted tokens into the most similar kept key");
  registry.add_preset({"lookm", "score=h2o select=head(recent=32,sinks=4) merge=lookm", paper,
                       "LOOK-M without images: H2O, all evicted keys and values merge by halves"});
}

}  // namespace precis
