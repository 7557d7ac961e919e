// TOVA: Oren, Hassid, Yarden, Adi, Schwartz, "Transformers are Multi-State RNNs", arXiv 2401.06104:
// the attention of the last query, averaged over the heads of the layer, ranks the tokens, and all
// heads of the layer keep the same ones.
//
//   score=tova    attention of the last query, mean over the query heads of the KV head
//   select=mean   one set for all KV heads of the layer: the best by the mean score over them,
//                 which is the mean over all query heads, as the groups have equal sizes
//
// decode=step is the paper: the token that the newest query attends to least is evicted. Nothing is
// remembered of earlier queries.
//
// Deviation: the prompt is condensed once. The paper evicts one token per step there too.
// Deviation: the last token is always kept, as in kvpress. The paper protects none.
#include <algorithm>

#include "compress/method.h"
#include "compress/step.h"
#include "methods/kept_tokens.h"

namespace precis {

void register_tova(Registry& registry);

namespace {

struct TovaParams {
  template <class V>
  void fields(V&&) {}
};

class TovaScorer final : public Scorer, public StepScorer {
 public:
  explicit TovaScorer(const TovaParams&) {}

  std::size_t queries_needed(std::size_t) const override { return 1; }

  void score(HeadView& head, std::span<float> scores) const override {
    const std::span<const float> mass = head.window_mass(1);
    for (std::size_t t = 0; t < scores.size(); ++t)
      scores[t] = mass[t] / static_cast<float>(head.group);
  }

  const StepScorer* step() const override { return this; }

  // The last query's attention.
  std::size_t n_fields() const override { return 1; }

  void carry(HeadView& head, std::span<const std::uint32_t> kept,
             const StepFields& fields) const override {
    for (std::size_t i = 0; i < kept.size(); ++i)
      fields.row(0)[i] = head.scores[kept[i]] * static_cast<float>(head.group);
  }

  void observe(const StepHead& head) const override {
    std::fill_n(head.fields.row(0), head.n, 0.0f);
    add_attention(head, head.fields.row(0));
  }

  void importance(const StepHead& head, std::span<float> scores) const override {
    for (std::size_t i = 0; i < scores.size(); ++i)
      scores[i] = head.fields.row(0)[i] / static_cast<float>(head.group);
  }
};

class MeanSelector final : public Selector {
 public:
  explicit MeanSelector(const ProtectionParams& params) : protection_(params.protection()) {}

  Protection protection() const override { return protection_; }

  std::vector<HeadPlan> select(const LayerTable& table) const override {
    Tokens tokens = open_tokens(table);
    keep_highest(tokens, open_entries(table), summed_scores(table).data());
    return same_plan_for_all(table, tokens);
  }

  StepScope step_scope() const override { return StepScope::kLayer; }

 private:
  Protection protection_;
};

}  // namespace

void register_tova(Registry& registry) {
  const std::string paper = "arXiv 2401.06104";
  registry.add_stage<TovaScorer, TovaParams>(StageKind::kScore, "tova", paper,
                                             "attention of the last query");
  registry.add_stage<MeanSelector, ProtectionParams>(
      StageKind::kSelect, "mean", paper,
      "the KV heads of a layer keep the same tokens: the best by the mean score");
  registry.add_preset({"tova", "score=tova select=mean(recent=1,sinks=0)", paper,
                       "TOVA: tokens that the last query attends to, the same in all heads"});
}

}  // namespace precis
