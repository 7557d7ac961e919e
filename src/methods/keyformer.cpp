// Keyformer: Adnan, Arunkumar, Jain, Nair, Soloveychik, Kamath, "Keyformer: KV Cache Reduction
// through Key Tokens Selection for Efficient Generative Inference", arXiv 2403.09054, and the
// authors' code: tokens are scored by accumulated attention whose logits are perturbed, so that
// attention that concentrates on what is kept does not hide what was evicted:
//
//   score[j] = sum over queries of softmax_j((x_j + zeta_j) / tau),  zeta_j standard Gumbel
//
// x are the logits of attention, zeta is drawn anew for every query and token.
//
// Cost: that of h2o (see h2o.cpp), and a logarithm for each query and token. window=w takes the
// last w queries only.
//
// Deviation: the prompt is condensed once, when tau is still tau_init = 1. The paper goes on
//   evicting while it decodes, and raises tau by 0.01 a step, so that tokens become more equal.
// Deviation: the score is summed over the query heads of a KV head.
// Deviation: 32 recent tokens are kept. The authors' code gives them 30 % of the budget.
// Deviation: zeta comes from a hash of the seed, the query and the token: the same on every run.
#include <algorithm>
#include <cmath>

#include "compress/method.h"
#include "methods/attention_rows.h"
#include "methods/hashed_uniform.h"

namespace precis {

void register_keyformer(Registry& registry);

namespace {

struct KeyformerParams : AccumulationParams {
  double tau = 1;

  template <class V>
  void fields(V&& v) {
    v("tau", tau, 0.01, 100, "temperature of the perturbed softmax");
    AccumulationParams::fields(v);
  }
};

class KeyformerScorer final : public Scorer {
 public:
  explicit KeyformerScorer(const KeyformerParams& params) : params_(params) {}

  std::size_t queries_needed(std::size_t n_tokens) const override {
    return params_.n_queries(n_tokens);
  }

  void score(HeadView& head, std::span<float> scores) const override {
    std::vector<double> sums(head.n_tokens, 0.0);
    std::vector<double> perturbed(head.n_tokens);
    visit_attention_rows(head, queries_needed(head.n_tokens), [&](const AttentionRow& row) {
      // Logits are the logarithms of attention, up to what all of the row have in common.
      const std::uint64_t number = row.token * head.group + row.member;
      double largest = -HUGE_VAL;
      for (std::size_t j = 0; j < row.attention.size(); ++j) {
        perturbed[j] = (std::log(static_cast<double>(row.attention[j])) +
                        gumbel(head.seed, number * head.n_tokens + j)) /
                       params_.tau;
        largest = std::max(largest, perturbed[j]);
      }
      if (largest == -HUGE_VAL) return;  // the row's attention is not known (see its visitor)
      double sum = 0;
      for (std::size_t j = 0; j < row.attention.size(); ++j) {
        perturbed[j] = std::exp(perturbed[j] - largest);
        sum += perturbed[j];
      }
      for (std::size_t j = 0; j < row.attention.size(); ++j) sums[j] += perturbed[j] / sum;
    });
    for (std::size_t t = 0; t < scores.size(); ++t) scores[t] = static_cast<float>(sums[t]);
  }

 private:
  static double gumbel(std::uint64_t seed, std::uint64_t number) {
    // In the middle of its 2^-24, so never 0.
    const double u = static_cast<double>(hashed_uniform(seed, number)) + 0x1p-25;
    return -std::log(-std::log(u));
  }

  KeyformerParams params_;
};

}  // namespace

void register_keyformer(Registry& registry) {
  const std::string paper = "arXiv 2403.09054";
  registry.add_stage<KeyformerScorer, KeyformerParams>(
      StageKind::kScore, "keyformer", paper, "attention of all queries with Gumbel noise, summed");
  registry.add_preset({"keyformer", "score=keyformer select=head(recent=32,sinks=0)", paper,
                       "Keyformer: heavy hitters of attention whose logits are perturbed"});
}

}  // namespace precis
