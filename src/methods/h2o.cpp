// H2O: Zhang, Sheng, Zhou, Chen, Zheng, Cai, Song, Tian, Re, Barrett, Wang, Chen, "H2O:
// Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models", arXiv
// 2306.14048: the attention that a token received from all queries so far is summed; the tokens
// with the largest sums are kept beside the most recent ones.
//
//   mean=off      the sum (the paper)
//   mean=visible  the sum divided by the number of queries that see the token, which takes away the
//                 head start of early tokens (ObservedAttentionPress of kvpress)
//
// Cost: all queries of a layer are kept in f32 while it is condensed (19 MB at 8k tokens of
// SmolLM2), and the products of queries and keys are made once more, which is about half of the
// prefill's attention. window=w takes the last w queries only.
//
// Deviation: the prompt is condensed once, with every query seeing the whole cache. The paper
//   evicts one token per step, and sums what queries saw of the tokens that were left.
// Deviation: the sum goes over the query heads of a KV head.
// Deviation: 32 recent tokens are kept. The paper gives them half of the budget.
#include "compress/method.h"
#include "methods/attention_rows.h"

namespace precis {

void register_h2o(Registry& registry);

namespace {

struct H2oParams : AccumulationParams {
  std::string mean = "off";

  template <class V>
  void fields(V&& v) {
    v("mean", mean, {"off", "visible"}, "divide by the number of queries that see the token");
    AccumulationParams::fields(v);
  }
};

class H2oScorer final : public Scorer {
 public:
  explicit H2oScorer(const H2oParams& params) : params_(params) {}

  std::size_t queries_needed(std::size_t n_tokens) const override {
    return params_.n_queries(n_tokens);
  }

  void score(HeadView& head, std::span<float> scores) const override {
    const std::size_t window = queries_needed(head.n_tokens);
    const std::span<const float> mass = head.window_mass(window);
    for (std::size_t t = 0; t < scores.size(); ++t) {
      const std::size_t seen_by = std::min(window, head.n_tokens - t);
      scores[t] = params_.mean == "off" ? mass[t] : mass[t] / static_cast<float>(seen_by);
    }
  }

 private:
  H2oParams params_;
};

}  // namespace

void register_h2o(Registry& registry) {
  const std::string paper = "arXiv 2306.14048";
  registry.add_stage<H2oScorer, H2oParams>(StageKind::kScore, "h2o", paper,
                                           "attention of all queries, summed");
  registry.add_preset({"h2o", "score=h2o select=head(recent=32,sinks=0)", paper,
                       "H2O: heavy hitters of all queries' attention, and recent tokens"});
}

}  // namespace precis
