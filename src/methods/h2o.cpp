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
// decode=step is algorithm 1 of the paper: every token's query adds its attention over what is left
// to the sums, with which the prompt begins them, and the entry with the smallest is evicted.
//
// Deviation: the prompt is condensed once, with every query seeing the whole cache. The paper
//   evicts one token per step there too, and sums what queries saw of the tokens that were left.
// Deviation: the sum goes over the query heads of a KV head.
// Deviation: 32 recent tokens are kept. The paper gives them half of the budget.
#include <algorithm>

#include "compress/method.h"
#include "compress/step.h"
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

class H2oScorer final : public Scorer, public StepScorer {
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

  const StepScorer* step() const override { return this; }

  // The sum; and the number of queries that it is of.
  std::size_t n_fields() const override { return is_mean() ? 2 : 1; }

  void carry(HeadView& head, std::span<const std::uint32_t> kept,
             const StepFields& fields) const override {
    const std::size_t window = queries_needed(head.n_tokens);
    for (std::size_t i = 0; i < kept.size(); ++i) {
      fields.row(0)[i] = head.scores[kept[i]];
      if (!is_mean()) continue;
      const auto seen_by = static_cast<float>(std::min(window, head.n_tokens - kept[i]));
      fields.row(0)[i] *= seen_by;
      fields.row(1)[i] = seen_by;
    }
  }

  void observe(const StepHead& head) const override {
    add_attention(head, head.fields.row(0));
    if (!is_mean()) return;
    for (std::size_t i = 0; i < head.n; ++i) head.fields.row(1)[i] += 1.0f;
  }

  void importance(const StepHead& head, std::span<float> scores) const override {
    for (std::size_t i = 0; i < scores.size(); ++i)
      scores[i] = is_mean() ? head.fields.row(0)[i] / head.fields.row(1)[i] : head.fields.row(0)[i];
  }

 private:
  bool is_mean() const { return params_.mean == "visible"; }

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
