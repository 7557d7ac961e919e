// D2O: Wan, Wu, Zhang, Xin, Tao, Zhu, Wang, Luo, Xiong, Wang, Zhang, "D2O: Dynamic Discriminative
// Operations for Efficient Long-Context Inference of Large Language Models", arXiv 2406.13035 (ICLR
// 2025; github.com/AIoT-MLSys-Lab/d2o): each evicted token e goes to the kept token t with the most
// similar key, u_e = cos(k_e, k_t), if u_e is at least the mean of all u. Keys and values merge
// with the same weights:
//
//   weights=cosine  x_t <- (x_t + sum u_e x_e) / (1 + n), n tokens arriving: what the released code
//                   runs. The weights add up to less than 1, so merged rows shrink a little.
//   weights=mean    x_t <- (x_t + sum x_e) / (1 + n), which the code has as a comment
//   weights=exp     x_t <- (e x_t + sum exp(u_e) x_e) / (e + sum exp(u_e)): a softmax of cosines,
//                   in which the target's own is 1
//
// There is no bias.
//
// Cost: as h2o (see h2o.cpp), and every evicted key is compared with every kept one: quadratic in
// the prompt.
//
// Deviation: the formula of weights=exp could not be read at its source; it is derived from the
//   statement that weights are exponentials of similarities and add up to 1.
// Deviation: the threshold is that of the prompt. The code goes on with its moving average, 0.5 old
//   and 0.5 new, while it evicts one token per step of decoding.
// Deviation: cosines are compared with the threshold of their own KV head. The code averages them
//   over the heads, so that all heads merge the same places of their own lists.
// Deviation: the first 4 tokens do not receive. In the code they are kept, and do.
// Deviation: a negative cosine weighs 0.
// Deviation: all layers have the same budget. The paper gives layers with even attention more, and
//   leaves the first two and the last one alone.
// Deviation: 32 recent tokens are kept; the code's share is a parameter.
// Deviation: cap, off by default, leaves out the least similar arrivals of a kept token.
#include <algorithm>
#include <cmath>

#include "compress/method.h"
#include "methods/nearest_key.h"
#include "methods/value_fold.h"

namespace precis {

void register_d2o(Registry& registry);

namespace {

struct D2oParams : CapParams {
  std::string weights = "cosine";
  int sinks = 4;

  template <class V>
  void fields(V&& v) {
    v("weights", weights, {"cosine", "mean", "exp"},
      "of evicted tokens: their cosine over the count, all alike, or exponentials of the cosine");
    v("sinks", sinks, 0, 1 << 20, "first tokens, which never receive");
    CapParams::fields(v);
  }
};

// As a float, so that cosines that are all the same reach their own mean.
float mean_of(const std::vector<float>& values) {
  double sum = 0;
  for (const float x : values) sum += static_cast<double>(x);
  return static_cast<float>(sum / static_cast<double>(std::max<std::size_t>(values.size(), 1)));
}

class D2oMerger final : public Merger {
 public:
  explicit D2oMerger(const D2oParams& params) : params_(params) {}

  std::size_t queries_needed(std::size_t) const override { return 0; }

  HeadMerge merge(HeadView& head, const HeadPlan& plan) const override {
    const NearestKeys nearest = nearest_keys(head, plan, static_cast<std::size_t>(params_.sinks));
    const float threshold = mean_of(nearest.cosines);
    std::vector<Arrival> arrivals;
    std::vector<float> cosines;
    for (std::size_t k = 0; k < nearest.tokens.size(); ++k) {
      const float cosine = nearest.cosines[k];
      if (nearest.slots[k] == NearestKeys::kNone || cosine < threshold) continue;
      arrivals.push_back({nearest.tokens[k], nearest.slots[k], weight_of(cosine)});
      cosines.push_back(cosine);
    }
    cap_arrivals(arrivals, plan.kept.size(), params_.cap, cosines);
    const float own = params_.weights == "exp" ? std::exp(1.0f) : 1.0f;
    Fold fold = make_fold(std::vector<float>(plan.kept.size(), own), std::move(arrivals));
    if (params_.weights == "cosine") {
      std::fill(fold.total.begin(), fold.total.end(), 1.0f);
      for (const Arrival& arrival : fold.arrivals) fold.total[arrival.slot] += 1.0f;
    }
    HeadMerge out = fold_values(head, plan, fold);
    fold_keys(head, plan, fold, out);
    return out;
  }

 private:
  float weight_of(float cosine) const {
    if (params_.weights == "mean") return 1.0f;
    return params_.weights == "exp" ? std::exp(cosine) : std::max(cosine, 0.0f);
  }

  D2oParams params_;
};

}  // namespace

void register_d2o(Registry& registry) {
  const std::string paper = "arXiv 2406.13035";
  registry.add_stage<D2oMerger, D2oParams>(
      StageKind::kMerge, "d2o", paper,
      "merges keys and values into the most similar kept key, if more similar than the mean");
  registry.add_preset({"d2o", "score=h2o select=head(recent=32,sinks=4) merge=d2o", paper,
                       "D2O with equal layers: H2O, similar tokens merge with keys and values"});
}

}  // namespace precis
