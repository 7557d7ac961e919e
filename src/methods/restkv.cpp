// ReST-KV: "ReST-KV: Robust KV Cache Eviction with Layer-wise Output Reconstruction and
// Spatial-Temporal Smoothing", arXiv 2605.08840 (ICLR 2026): evicting token n changes the output of
// query t by
//
//   I_t[n] = A_t[n] / (1 - A_t[n]) * ||o_t - v_n||_2
//
// (what the other tokens' renormalised attention leaves). An exponential moving average over the
// window's queries, the latest weighing most, is the score.
//
// Read in notes only; unread, and so chosen here:
// Deviation: o_t and v_n are those of the head. The paper measures after W_O, which a stage does
//   not see.
// Deviation: the smoothing factor (0.1 of each new query) and the window (32).
// Deviation: the window is fixed. The paper widens it by how far the best tokens of its two halves
//   lie apart.
// Deviation: I_t is averaged over the query heads of a KV head; 1 - A is floored at 1e-6.
#include <algorithm>
#include <cmath>

#include "compress/method.h"
#include "methods/attention_rows.h"
#include "methods/value_sizes.h"

namespace precis {

void register_restkv(Registry& registry);

namespace {

constexpr double kLeastRest = 1e-6;  // of 1 - A: f32 attention knows it no better

struct RestParams {
  int window = 32;
  double alpha = 0.1;

  template <class V>
  void fields(V&& v) {
    v("window", window, 1, 4096, "last queries whose outputs count");
    v("alpha", alpha, 0.001, 1, "weight of each later query in the moving average");
  }
};

class RestScorer final : public Scorer {
 public:
  explicit RestScorer(const RestParams& params) : params_(params) {}

  std::size_t queries_needed(std::size_t n_tokens) const override {
    return observed_window(params_.window, n_tokens);
  }

  void score(HeadView& head, std::span<float> scores) const override {
    const std::size_t width = head.head_dim;
    const std::size_t window = queries_needed(head.n_tokens);
    const std::size_t first = head.n_tokens - window;
    const std::vector<float> outputs = attention_outputs(head, window);
    const std::vector<float> values = value_rows(head);
    std::vector<double> smoothed(head.n_tokens, 0.0);
    std::vector<double> current(head.n_tokens, 0.0);  // I_t
    visit_attention_rows(head, window, [&](const AttentionRow& row) {
      const float* output = outputs.data() + row.number * width;
      for (std::size_t n = 0; n < row.attention.size(); ++n) {
        const auto a = static_cast<double>(row.attention[n]);
        const double distance =
            std::sqrt(compare_value(values.data() + n * width, output, width).squared_distance);
        current[n] += a / std::max(1 - a, kLeastRest) * distance / static_cast<double>(head.group);
      }
      if (row.member + 1 < head.group) return;
      const double weight = row.token == first ? 1.0 : params_.alpha;
      for (std::size_t n = 0; n < row.attention.size(); ++n)
        smoothed[n] += weight * (current[n] - smoothed[n]);
      std::fill(current.begin(), current.end(), 0.0);
    });
    for (std::size_t n = 0; n < scores.size(); ++n) scores[n] = static_cast<float>(smoothed[n]);
  }

 private:
  RestParams params_;
};

}  // namespace

void register_restkv(Registry& registry) {
  const std::string paper = "arXiv 2605.08840";
  registry.add_stage<RestScorer, RestParams>(
      StageKind::kScore, "restkv", paper,
      "moving average of the change of an output if the token were evicted");
  registry.add_preset({"restkv", "score=restkv select=head(recent=32,sinks=0)", paper,
                       "ReST-KV as far as it is known: without W_O and adaptive windows"});
}

}  // namespace precis
