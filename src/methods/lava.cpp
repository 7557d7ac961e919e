// LAVa: Shen, Yuan, Zhang, Wang, Jiang, Nguyen, "LAVa: Layer-wise KV Cache Eviction with Dynamic
// Budget Allocation", arXiv 2509.09754: the score of token i is
//
//   max_k ||v_k||_1 / w * (attention of the last w queries to i)
//
// which bounds the loss at the layer's output, so that entries of different heads compare; those of
// a layer are ranked together. A KV head takes the maximum over its group of query heads.
//
// The budgets of layers are in proportion to the entropy of the layer's normalised scores, summed
// over its heads; as layers come, the earlier ones give up entries, as in the paper.
//
//   layers=entropy   these budgets, for any score that is not negative
//
// Deviation: scores below 0, which LAVa's own never are, count as 0.
// Deviation: the paper's text was read in a note. Window 32 is this project's choice, and so is the
//   floor of 8 entries per head.
// Deviation: no pooling of neighbours; the note mentions none.
#include <algorithm>
#include <cmath>

#include "compress/method.h"
#include "methods/attention_rows.h"
#include "methods/value_sizes.h"

namespace precis {

void register_lava(Registry& registry);

namespace {

struct LavaParams {
  int window = 32;

  template <class V>
  void fields(V&& v) {
    v("window", window, 1, 4096, "last queries whose attention is observed");
  }
};

class LavaScorer final : public Scorer {
 public:
  explicit LavaScorer(const LavaParams& params) : params_(params) {}

  std::size_t queries_needed(std::size_t n_tokens) const override {
    return observed_window(params_.window, n_tokens);
  }

  void score(HeadView& head, std::span<float> scores) const override {
    const std::size_t window = queries_needed(head.n_tokens);
    const std::size_t n = head.n_tokens;
    std::vector<float> mass(head.group * n, 0.0f);  // of each query head
    visit_attention_rows(head, window, [&](const AttentionRow& row) {
      float* own = mass.data() + row.member * n;
      for (std::size_t t = 0; t < row.attention.size(); ++t) own[t] += row.attention[t];
    });
    const std::vector<float> norms = value_l1_norms(head);
    const float scale = *std::max_element(norms.begin(), norms.end()) / static_cast<float>(window);
    for (std::size_t t = 0; t < n; ++t) {
      float largest = 0.0f;
      for (std::size_t g = 0; g < head.group; ++g) largest = std::max(largest, mass[g * n + t]);
      scores[t] = scale * largest;
    }
  }

 private:
  LavaParams params_;
};

struct EntropyParams {
  template <class V>
  void fields(V&&) {}
};

class EntropyBudgets final : public LayerBudgets {
 public:
  explicit EntropyBudgets(const EntropyParams&) {}

  bool sees_scores() const override { return true; }

  double weigh(const LayerTable& table) const override {
    const std::span<const float> scores(table.scores, table.n_kv_heads * table.n_tokens);
    double sum = 0;
    for (const float score : scores) sum += std::max(0.0, static_cast<double>(score));
    double entropy = 0;
    for (const float score : scores) {
      const double share = static_cast<double>(score) / sum;
      if (share > 0) entropy -= share * std::log(share);
    }
    return entropy;
  }

  std::vector<double> divide(std::span<const LayerTable>, std::span<const double> weights,
                             std::size_t n_entries) const override {
    double sum = 0;
    for (const double weight : weights) sum += weight;
    std::vector<double> out;
    for (const double weight : weights) {
      const double share = sum > 0 ? weight / sum : 1 / static_cast<double>(weights.size());
      out.push_back(share * static_cast<double>(n_entries));
    }
    return out;
  }
};

}  // namespace

void register_lava(Registry& registry) {
  const std::string paper = "arXiv 2509.09754";
  registry.add_stage<LavaScorer, LavaParams>(
      StageKind::kScore, "lava", paper,
      "attention of the last queries times the head's largest value norm");
  registry.add_stage<EntropyBudgets, EntropyParams>(
      StageKind::kLayers, "entropy", paper,
      "budgets of layers in proportion to the entropy of their scores");
  registry.add_preset({"lava", "score=lava select=layer(recent=32,sinks=0) layers=entropy", paper,
                       "LAVa: heads of a layer share its budget, layers share by entropy"});
}

}  // namespace precis
