// LAVa: Shen, Yuan, Zhang, Wang, Jiang, Nguyen, "LAVa: Layer-wise KV Cache Eviction with Dynamic
// Budget Allocation", arXiv 2509.09754: the score of token i is
//
//   max_k ||v_k||_1 / w * (attention of the last w queries to i)
//
// which bounds the loss at the layer's output, so that entries of different heads compare; those of
// a layer are ranked together. A KV head takes the maximum over its group of query heads.
//
// Deviation: all layers have the same budget. The paper's layer budgets, by the entropy of the
//   scores, need a seam.
// Deviation: the paper's text was read in a note. Window 32 is this project's choice, and so is the
//   floor of 8 entries per head.
// Deviation: no pooling of neighbours; the note mentions none.
#include <algorithm>

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

}  // namespace

void register_lava(Registry& registry) {
  const std::string paper = "arXiv 2509.09754";
  registry.add_stage<LavaScorer, LavaParams>(
      StageKind::kScore, "lava", paper,
      "attention of the last queries times the head's largest value norm");
  registry.add_preset({"lava", "score=lava select=layer(recent=32,sinks=0)", paper,
                       "LAVa with equal layer budgets: heads of a layer share its budget"});
}

}  // namespace precis
