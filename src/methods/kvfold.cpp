// kvfold: Gast, "Folding discarded entries back into a compressed KV cache", preprint, October 2026
// (github.com/jg-codes/kvfold, MassFold): each evicted token j goes to the kept token i whose key
// has the largest cosine to its own, and with s = log of the score
//
//   w_j = exp(min(s_j - s_i, 30))
//   v_i <- (v_i + sum w_j v_j) / (1 + sum w_j),   bias_i = log(1 + sum w_j)
//
// The first 4 tokens never receive. Keys stay. The bias is bias=ratio(alpha=1,mode=head) of R = 1 +
// sum w_j.
//
// Its author measured gains in containment on RULER and losses on LongBench and in exact match.
//
// Cost: every evicted key is compared with every kept one, quadratic in the prompt.
//
//   weight=attention  s is the log of the attention of the last `window` queries
//   weight=score      s is the log of the method's own score: kvfold, which wraps any method
//
// Deviation: weight=attention is the default: the bias stands for attention, and not every score is
//   one. With SnapKV's scores the two differ by the pooling.
// Deviation: attention and score are at least 1e-30. Scores that are not positive (K-norm's) thus
//   weigh all alike; kvfold takes only scores that are positive or logs.
// Deviation: the preset scores with SnapKV at this project's defaults; kvfold's runs wrap KVzip,
//   KVzap and RestoreKV.
// Deviation: sums run in order of the token (scatter="sorted" there).
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "compress/method.h"
#include "methods/nearest_key.h"
#include "methods/value_fold.h"

namespace precis {

void register_kvfold(Registry& registry);

namespace {

constexpr float kLeastMass = 1e-30f;
constexpr float kMaxLogWeight = 30.0f;

struct FoldParams : CapParams {
  int window = 32;
  int sinks = 4;
  std::string weight = "attention";

  template <class V>
  void fields(V&& v) {
    v("window", window, 1, 4096, "last queries whose attention weighs the merge");
    v("sinks", sinks, 0, 1 << 20, "first tokens, which never receive");
    v("weight", weight, {"attention", "score"},
      "what weighs the merge: the last queries' attention, or the method's own score");
    CapParams::fields(v);
  }
};

class FoldMerger final : public Merger {
 public:
  explicit FoldMerger(const FoldParams& params) : params_(params) {}

  std::size_t queries_needed(std::size_t n_tokens) const override {
    if (params_.weight == "score") return 0;
    return std::min(static_cast<std::size_t>(params_.window), n_tokens);
  }

  HeadMerge merge(HeadView& head, const HeadPlan& plan) const override {
    const std::span<const float> mass = masses(head);
    const NearestKeys nearest = nearest_keys(head, plan, static_cast<std::size_t>(params_.sinks));
    const auto log_mass = [&](std::uint32_t token) {
      return std::log(std::max(mass[token], kLeastMass));
    };
    std::vector<Arrival> arrivals;
    for (std::size_t k = 0; k < nearest.tokens.size(); ++k) {
      const std::uint32_t slot = nearest.slots[k];
      if (slot == NearestKeys::kNone) continue;
      const float log_weight = log_mass(nearest.tokens[k]) - log_mass(plan.kept[slot]);
      arrivals.push_back({nearest.tokens[k], slot, std::exp(std::min(log_weight, kMaxLogWeight))});
    }
    cap_arrivals(arrivals, plan.kept.size(), params_.cap);
    const Fold fold = make_fold(std::vector<float>(plan.kept.size(), 1.0f), std::move(arrivals));
    HeadMerge out = fold_values(head, plan, fold);
    for (std::size_t i = 0; i < plan.kept.size(); ++i) out.mass_ratio[i] = 1.0f + fold.arrived[i];
    return out;
  }

 private:
  std::span<const float> masses(HeadView& head) const {
    if (params_.weight == "attention")
      return head.window_mass(static_cast<std::size_t>(params_.window));
    PRECIS_CHECK(head.scores != nullptr, "merging by scores, and there are none");
    return {head.scores, head.n_tokens};
  }

  FoldParams params_;
};

}  // namespace

void register_kvfold(Registry& registry) {
  const std::string source = "kvfold (Gast 2026)";
  registry.add_stage<FoldMerger, FoldParams>(
      StageKind::kMerge, "kvfold", source,
      "merges evicted values into the kept token with the most similar key, weighed by attention");
  registry.add_preset({"kvfold",
                       "score=snapkv select=head(recent=32,sinks=4) merge=kvfold "
                       "bias=ratio(alpha=1,mode=head)",
                       source, "SnapKV with evicted values folded back, and their mass as a bias"});
}

}  // namespace precis
