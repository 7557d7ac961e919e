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
// decode=step goes on from the prompt's sums, evicts the lowest at every token and raises tau by
// 0.01 a step, as the authors' code does, so that tokens become more equal. A token costs a
// logarithm and a power for each query head and entry.
//
// Deviation: the prompt is condensed once, with every query seeing the whole cache, and tau.
// Deviation: the score is summed over the query heads of a KV head.
// Deviation: 32 recent tokens are kept. The authors' code gives them 30 % of the budget.
// Deviation: zeta comes from a hash of the seed, the query and the token: the same on every run.
#include <algorithm>
#include <cmath>
#include <limits>

#include "compress/method.h"
#include "compress/step.h"
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

class KeyformerScorer final : public Scorer, public StepScorer {
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

  const StepScorer* step() const override { return this; }

  // The sum.
  std::size_t n_fields() const override { return 1; }

  void carry(HeadView& head, std::span<const std::uint32_t> kept,
             const StepFields& fields) const override {
    for (std::size_t i = 0; i < kept.size(); ++i) fields.row(0)[i] = head.scores[kept[i]];
  }

  // exp((x + zeta) / tau) is (e^x / -ln u)^(1 / tau) up to what the row has in common; the first
  // passes are for what it has in common, the last adds.
  void observe(const StepHead& head) const override {
    const double tau = params_.tau + kTauGrowth * static_cast<double>(head.n_before + 1);
    for (std::size_t g = 0; g < head.group; ++g) {
      const float* row = head.attention + g * head.attention_stride;
      const std::uint64_t number = (head.n_before * head.group + g) << kPositionBits;
      // Logarithms: at a small tau the weights themselves overflow.
      const auto log_weight = [&](std::size_t i) {
        const auto position = static_cast<std::uint64_t>(head.positions[i]);
        const float u = hashed_uniform(head.seed ^ kStepSalt, number + position) + 0x1p-25f;
        // u is below 1 but for rounding, which would make the weight infinite.
        const float exponential = -std::log(std::min(u, kBelowOne));
        return (std::log(static_cast<double>(row[i])) -
                std::log(static_cast<double>(exponential))) /
               tau;
      };
      double largest = -std::numeric_limits<double>::infinity();
      for (std::size_t i = 0; i < head.n; ++i) largest = std::max(largest, log_weight(i));
      if (!std::isfinite(largest)) continue;
      double sum = 0;
      for (std::size_t i = 0; i < head.n; ++i) sum += std::exp(log_weight(i) - largest);
      for (std::size_t i = 0; i < head.n; ++i)
        head.fields.row(0)[i] += static_cast<float>(std::exp(log_weight(i) - largest) / sum);
    }
  }

  void importance(const StepHead& head, std::span<float> scores) const override {
    std::copy_n(head.fields.row(0), scores.size(), scores.data());
  }

 private:
  static constexpr double kTauGrowth = 0.01;
  // Other draws than the prompt's. Positions are below 2^24, where hashed_uniform() repeats.
  static constexpr std::uint64_t kStepSalt = 0x6b657966;
  static constexpr int kPositionBits = 24;
  static constexpr float kBelowOne = 1.0f - 0x1p-24f;

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
