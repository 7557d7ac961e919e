// OBCache: "OBCache: Optimal Brain KV Cache Pruning for Efficient Long-Context LLM Inference",
// arXiv 2510.07651 (ICML 2026), propositions 4.3 to 4.5: second-order estimates of what evicting
// token p does to the attention outputs of the window's queries i. With A the attention, Z the
// logits before the softmax and o_i the output,
//
//   kind=value  sum_i A_ip^2 ||v_p||^2
//   kind=key    sum_i (A_ip Z_ip)^2 ||v_p - o_i||^2
//   kind=joint  value + key + 2 sum_i A_ip^2 Z_ip (||v_p||^2 - v_p . o_i)
//
// The paper puts them in the place of the attention in SnapKV and others; pooling stays.
//
// Deviation: the paper's text was read in a note, not at source; its GQA derivation (A.5) is
//   unread. The scores are summed over the query heads of a KV head.
// Deviation: o_i is the output of the head, before W_O, which a stage does not see.
// Deviation: window 32 and average pooling of 5 are this project's choice; the settings of the
//   paper's SnapKV runs are unread (kvpress, which it uses, has 64 and 5).
// Deviation: with a soft-cap, Z is the capped logit.
#include <algorithm>
#include <cmath>
#include <limits>

#include "compress/method.h"
#include "methods/attention_rows.h"
#include "methods/pooling.h"
#include "methods/value_sizes.h"

namespace precis {

void register_obcache(Registry& registry);

namespace {

struct ObParams {
  std::string kind = "key";
  int window = 32;
  int pool = 5;

  template <class V>
  void fields(V&& v) {
    v("kind", kind, {"value", "key", "joint"}, "what is taken to be pruned");
    v("window", window, 1, 4096, "last queries whose outputs count");
    v("pool", pool, 1, 255, "width of the average pooling, odd");
  }
};

class ObScorer final : public Scorer {
 public:
  explicit ObScorer(const ObParams& params) : params_(params) { check_pool_width(params.pool); }

  std::size_t queries_needed(std::size_t n_tokens) const override {
    return observed_window(params_.window, n_tokens);
  }

  void score(HeadView& head, std::span<float> scores) const override {
    const std::size_t width = head.head_dim;
    const std::size_t window = queries_needed(head.n_tokens);
    const std::vector<float> outputs = attention_outputs(head, window);
    const std::vector<float> values = value_rows(head);
    const std::span<const float> norms = head.value_norms();
    std::vector<double> sums(head.n_tokens, 0.0);
    visit_attention_rows(head, window, [&](const AttentionRow& row) {
      const float* output = outputs.data() + row.number * width;
      for (std::size_t p = 0; p < row.attention.size(); ++p) {
        const auto a = static_cast<double>(row.attention[p]);
        if (!(a > 0)) continue;  // every term has the factor A^2
        const double z = std::log(a) + static_cast<double>(row.log_sum_exp);
        const double square = static_cast<double>(norms[p]) * static_cast<double>(norms[p]);
        if (params_.kind == "value") {
          sums[p] += a * a * square;
          continue;
        }
        const ValueToPoint value = compare_value(values.data() + p * width, output, width);
        sums[p] += a * a * z * z * value.squared_distance;
        if (params_.kind == "joint")
          sums[p] += a * a * square + 2 * a * a * z * (square - value.product);
      }
    });
    // Logits and values of 1e4 give 1e24 and more per row.
    constexpr double kMost = std::numeric_limits<float>::max() / 256;
    std::vector<float> rounded(head.n_tokens);
    for (std::size_t p = 0; p < rounded.size(); ++p)
      rounded[p] = static_cast<float>(std::clamp(sums[p], -kMost, kMost));
    average_pool(rounded, params_.pool, scores);
  }

 private:
  ObParams params_;
};

}  // namespace

void register_obcache(Registry& registry) {
  const std::string paper = "arXiv 2510.07651";
  registry.add_stage<ObScorer, ObParams>(
      StageKind::kScore, "obcache", paper,
      "estimated change of the last queries' outputs if the token were evicted");
  registry.add_preset({"obcache", "score=obcache select=head(recent=32,sinks=0)", paper,
                       "OBCache-K over SnapKV; kind=value and kind=joint are its other forms"});
}

}  // namespace precis
