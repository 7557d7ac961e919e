// VATP: Guo, Kamigaito, Watanabe, "Attention Score is not All You Need for Token Importance
// Indicator in KV Cache Reduction: Value Also Matters", arXiv 2406.12335: accumulated attention
// times the L1 norm of the value. The first 20 tokens are always kept: much of the attention goes
// to sinks, whose values are small.
//
// Cost: as h2o (see h2o.cpp); window=w takes the last w queries only, window=400 is its form over
// Scissorhands.
//
// decode=step adds attention times the norm at every token, and evicts the lowest.
//
// Deviation: the prompt is condensed once, with every query seeing the whole cache.
// Deviation: with decode=step the authors' code adds attention without the norm.
// Deviation: with a merge stage the norm stays that of the value as it came.
// Deviation: attention is summed over the query heads of a KV head.
// Deviation: 16 recent tokens are kept. The authors' H2O form gives them half of the budget, the
//   Scissorhands form 10 tokens.
#include <algorithm>

#include "compress/method.h"
#include "compress/step.h"
#include "methods/attention_rows.h"
#include "methods/value_sizes.h"

namespace precis {

void register_vatp(Registry& registry);

namespace {

class VatpScorer final : public Scorer, public StepScorer {
 public:
  explicit VatpScorer(const AccumulationParams& params) : params_(params) {}

  std::size_t queries_needed(std::size_t n_tokens) const override {
    return params_.n_queries(n_tokens);
  }

  void score(HeadView& head, std::span<float> scores) const override {
    const std::size_t window = queries_needed(head.n_tokens);
    const std::span<const float> mass = head.window_mass(window);
    const std::vector<float> norms = value_l1_norms(head);
    // Logits of 1e9 and more are further from their rounded log-sum-exp than an exponential bears:
    // such a mass may be anything finite.
    const auto most = static_cast<float>(window * head.group);
    for (std::size_t t = 0; t < scores.size(); ++t)
      scores[t] = std::clamp(mass[t], 0.0f, most) * norms[t];
  }

  const StepScorer* step() const override { return this; }

  // The sum, and the value's norm.
  std::size_t n_fields() const override { return 2; }

  void carry(HeadView& head, std::span<const std::uint32_t> kept,
             const StepFields& fields) const override {
    for (std::size_t i = 0; i < kept.size(); ++i) {
      fields.row(0)[i] = head.scores[kept[i]];
      fields.row(1)[i] =
          value_l1_norm(head.entries.values + kept[i] * head.head_dim, head.head_dim);
    }
  }

  void enter(const StepHead& head, std::size_t slot) const override {
    head.fields.row(1)[slot] = value_l1_norm(head.values + slot * head.head_dim, head.head_dim);
  }

  void observe(const StepHead& head) const override {
    for (std::size_t g = 0; g < head.group; ++g) {
      const float* row = head.attention + g * head.attention_stride;
      for (std::size_t i = 0; i < head.n; ++i)
        head.fields.row(0)[i] += row[i] * head.fields.row(1)[i];
    }
  }

  void importance(const StepHead& head, std::span<float> scores) const override {
    std::copy_n(head.fields.row(0), scores.size(), scores.data());
  }

 private:
  AccumulationParams params_;
};

}  // namespace

void register_vatp(Registry& registry) {
  const std::string paper = "arXiv 2406.12335";
  registry.add_stage<VatpScorer, AccumulationParams>(
      StageKind::kScore, "vatp", paper, "accumulated attention times the value's L1 norm");
  registry.add_preset({"vatp", "score=vatp select=head(recent=16,sinks=20)", paper,
                       "VATP over H2O: heavy hitters weighed by the size of their values"});
}

}  // namespace precis
