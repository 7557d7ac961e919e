// VATP: Guo, Kamigaito, Watanabe, "Attention Score is not All You Need for Token Importance
// Indicator in KV Cache Reduction: Value Also Matters", arXiv 2406.12335: accumulated attention
// times the L1 norm of the value. The first 20 tokens are always kept: much of the attention goes
// to sinks, whose values are small.
//
// Cost: as h2o (see h2o.cpp); window=w takes the last w queries only, window=400 is its form over
// Scissorhands.
//
// Deviation: the prompt is condensed once; afterwards the authors' code adds attention without the
//   norm at every step.
// Deviation: attention is summed over the query heads of a KV head.
// Deviation: 16 recent tokens are kept. The authors' H2O form gives them half of the budget, the
//   Scissorhands form 10 tokens.
#include <algorithm>

#include "compress/method.h"
#include "methods/attention_rows.h"
#include "methods/value_sizes.h"

namespace precis {

void register_vatp(Registry& registry);

namespace {

class VatpScorer final : public Scorer {
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
