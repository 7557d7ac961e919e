// MergingPress of kvpress (github.com/NVIDIA/kvpress, kvpress/presses/merging_press.py, 2026; no
// paper; after Token Merging, arXiv 2210.09461, and D2O, arXiv 2406.13035): each evicted token e
// goes to the kept token t with the most similar key, and
//
//   w_e = max(cos(k_e, k_t), 0) * ||v_e|| / (||v_e|| + ||v_t|| + 1e-6)
//   v_t <- (v_t + sum w_e v_e) / (1 + sum w_e)
//
// Keys stay, and there is no bias.
//
// Cost: every evicted key is compared with every kept one, quadratic in the prompt.
//
// Deviation: merge_fraction, which leaves out the least similar tokens, is not built in; its
//   default merges all.
// Deviation: cap leaves the lightest arrivals of a kept token out. max_merge_per_token of kvpress
//   scales all of them down instead; neither does anything by default.
// Deviation: the preset scores with SnapKV at this project's defaults. kvpress wraps any scorer,
//   and its published gains are over K-norm: `merging score=knorm`.
#include "compress/method.h"
#include "methods/nearest_key.h"
#include "methods/value_fold.h"

namespace precis {

void register_merging(Registry& registry);

namespace {

constexpr float kTinyNorm = 1e-6f;

struct MergingParams : CapParams {
  double threshold = 0;

  template <class V>
  void fields(V&& v) {
    v("threshold", threshold, 0, 1, "least cosine of keys that merge");
    CapParams::fields(v);
  }
};

class MergingMerger final : public Merger {
 public:
  explicit MergingMerger(const MergingParams& params) : params_(params) {}

  std::size_t queries_needed(std::size_t) const override { return 0; }

  HeadMerge merge(HeadView& head, const HeadPlan& plan) const override {
    const NearestKeys nearest = nearest_keys(head, plan, 0);
    const std::span<const float> norms = head.value_norms();
    std::vector<Arrival> arrivals;
    for (std::size_t k = 0; k < nearest.tokens.size(); ++k) {
      const float cosine = nearest.cosines[k];
      const std::uint32_t slot = nearest.slots[k];
      if (slot == NearestKeys::kNone || !(cosine > 0.0f) ||
          static_cast<double>(cosine) < params_.threshold)
        continue;
      const float norm = norms[nearest.tokens[k]];
      const float weight = cosine * norm / (norm + norms[plan.kept[slot]] + kTinyNorm);
      arrivals.push_back({nearest.tokens[k], slot, weight});
    }
    cap_arrivals(arrivals, plan.kept.size(), params_.cap);
    std::vector<float> own(plan.kept.size(), 1.0f);
    return fold_values(head, plan, make_fold(std::move(own), std::move(arrivals)));
  }

 private:
  MergingParams params_;
};

}  // namespace

void register_merging(Registry& registry) {
  const std::string source = "kvpress, MergingPress";
  registry.add_stage<MergingMerger, MergingParams>(
      StageKind::kMerge, "merging", source,
      "merges evicted values into the kept token with the most similar key, weighed by norms");
  registry.add_preset({"merging", "score=snapkv select=head(recent=32,sinks=0) merge=merging",
                       source, "SnapKV with evicted values merged by the similarity of keys"});
}

}  // namespace precis
