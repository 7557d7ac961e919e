// ReST-KV: "ReST-KV: Robust KV Cache Eviction with Layer-wise Output Reconstruction and
// Spatial-Temporal Smoothing", arXiv 2605.08840 (ICLR 2026): evicting token n changes the output of
// query t by
//
//   I_t[n] = A_t[n] / (1 - A_t[n]) * ||W_O (o_t - v_n)||_2
//
// (what the other tokens' renormalised attention leaves; o_t and W_O are those of the query head).
// An exponential moving average over the window's queries, the latest weighing most, is the score.
// Window and smoothing factor are those of the authors' runs.
//
//   space=output  as above
//   space=head    without W_O: ||o_t - v_n||_2
//
// Deviation: I is taken for each query and then averaged, as the equation has it (the authors'
//   metric_mode=before). Their runs average the attention first and take I of that.
// Deviation: no pooling of neighbours. The authors average over 5, or more where the best tokens of
//   the window's two halves lie far apart, and shift by that distance.
// Deviation: I_t is averaged over the query heads of a KV head; 1 - A is floored at 1e-6.
#include <algorithm>
#include <cmath>

#include "compress/method.h"
#include "kernels/float_rows.h"
#include "methods/attention_rows.h"
#include "methods/value_sizes.h"

namespace precis {

void register_restkv(Registry& registry);

namespace {

constexpr double kLeastRest = 1e-6;  // of 1 - A: f32 attention knows it no better

struct RestParams {
  int window = 32;
  double alpha = 0.3;
  std::string space = "output";

  template <class V>
  void fields(V&& v) {
    v("window", window, 1, 4096, "last queries whose outputs count");
    v("alpha", alpha, 0.001, 1, "weight of each later query in the moving average");
    v("space", space, {"output", "head"}, "measure outputs of the layer, or of the head");
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
    const Rows rows = rows_of(head, window);
    std::vector<double> smoothed(head.n_tokens, 0.0);
    std::vector<double> current(head.n_tokens, 0.0);  // I_t
    visit_attention_rows(head, window, [&](const AttentionRow& row) {
      const float* output = rows.outputs.data() + row.number * width;
      const float* values = rows.values_of(row.member);
      for (std::size_t n = 0; n < row.attention.size(); ++n) {
        const auto a = static_cast<double>(row.attention[n]);
        const double distance =
            std::sqrt(compare_value(values + n * width, output, width).squared_distance);
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
  // Outputs of the window's rows and values of the head, where distances are measured.
  struct Rows {
    std::vector<float> outputs;  // [window, group, head_dim]
    std::vector<float> values;   // [group or 1, n_tokens, head_dim]
    std::size_t per_member = 0;  // floats

    const float* values_of(std::size_t member) const { return values.data() + member * per_member; }
  };

  Rows rows_of(HeadView& head, std::size_t window) const {
    const std::size_t d = head.head_dim;
    Rows rows{attention_outputs(head, window), value_rows(head), 0};
    if (params_.space == "head") return rows;
    // Products with R instead of W_O: the same lengths in head_dim numbers.
    const std::span<const float> factors = head.output_factors();
    rows.per_member = rows.values.size();
    std::vector<float> values(head.group * rows.per_member);
    std::vector<float> outputs(rows.outputs.size());
    for (std::size_t g = 0; g < head.group; ++g) {
      throw_if_cancelled(head.cancel);
      const FloatRows factor{factors.data() + g * d * d, d, d};
      const MatrixSource matrix = matrix_of(factor);
      multiply_transposed(rows.values.data(), head.n_tokens, matrix, 0, d,
                          values.data() + g * rows.per_member, d, head.scratch());
      for (std::size_t r = g; r < window * head.group; r += head.group)
        multiply_transposed(rows.outputs.data() + r * d, 1, matrix, 0, d, outputs.data() + r * d, d,
                            head.scratch());
    }
    rows.values = std::move(values);
    rows.outputs = std::move(outputs);
    return rows;
  }

  RestParams params_;
};

}  // namespace

void register_restkv(Registry& registry) {
  const std::string paper = "arXiv 2605.08840";
  registry.add_stage<RestScorer, RestParams>(
      StageKind::kScore, "restkv", paper,
      "moving average of the change of an output if the token were evicted");
  registry.add_preset(
      {"restkv", "score=restkv select=head(recent=32,sinks=0)", paper,
       "ReST-KV without pooling: tokens whose loss would change the layer's output most"});
}

}  // namespace precis
