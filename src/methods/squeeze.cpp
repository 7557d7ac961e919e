// SqueezeAttention: Wang, Cui, Gan, "SqueezeAttention: 2D Management of KV-Cache in LLM Inference
// via Layer-wise Optimal Budget", arXiv 2404.04793: a layer whose attention hardly turns the hidden
// state is less important. The cosine between the residual stream before attention and after its
// output was added, averaged over the prompt's tokens, is split into three groups by k-means; with
// L layers of a mean budget b, each of the g layers in the group of the largest cosines gets p b,
// each of the others (L b - g p b) / (L - g). The cosines are those of the authors' code.
//
//   layers=squeeze   these budgets, beside any score
//
// The preset takes them with H2O, which the paper does too; its other two companions are a sliding
// window and StreamingLLM.
//
// Three groups of numbers on a line are two cuts, so the best ones are found by trying all.
//
// Deviation: layers are condensed as they come, so that a layer gives up entries before the later
//   ones are known: after j of L layers each has what the rule gives among these j, and the part of
//   the budget that is still free, (L - j) / j of b, on top. A layer that is among the least
//   important of the first layers and not of all may have given up entries by then; they are not
//   spent elsewhere (cosines of 0.1, 0.2, 0.7 and 0.99 in this order: an eighth of the budget).
// Deviation: the paper's text was read in a note, its clustering code was not found. Its p is
//   0.3 to 0.4, from memory.
// Deviation: cosines are of the layers that can be condensed.
// Deviation: of fewer than three distinct cosines each is a group; one alone gets equal budgets.
#include <algorithm>
#include <limits>

#include "compress/method.h"

namespace precis {

void register_squeeze(Registry& registry);

namespace {

struct SqueezeParams {
  double p = 0.35;

  template <class V>
  void fields(V&& v) {
    v("p", p, 0, 1, "part of the mean budget for layers whose attention changes little");
  }
};

// The smallest number of the highest of at most three groups with the least sum of squared
// distances to their means; infinite if all numbers are equal. REQUIRES: not empty.
double least_of_top_group(std::span<const double> numbers) {
  std::vector<double> sorted(numbers.begin(), numbers.end());
  std::sort(sorted.begin(), sorted.end());
  const std::size_t n = sorted.size();
  // Around the middle one, so that sums of squares of nearly equal numbers do not cancel.
  const double origin = sorted[n / 2];
  std::vector<double> sums(n + 1);
  std::vector<double> squares(n + 1);
  for (std::size_t i = 0; i < n; ++i) {
    const double x = sorted[i] - origin;
    sums[i + 1] = sums[i] + x;
    squares[i + 1] = squares[i] + x * x;
  }
  const auto spread = [&](std::size_t first, std::size_t last) {
    if (first == last) return 0.0;
    const double sum = sums[last] - sums[first];
    return squares[last] - squares[first] - sum * sum / static_cast<double>(last - first);
  };
  // Cuts fall between different numbers only: equal ones have one fate.
  std::vector<std::size_t> cuts = {0};
  for (std::size_t i = 1; i < n; ++i)
    if (sorted[i] != sorted[i - 1]) cuts.push_back(i);
  double best = std::numeric_limits<double>::infinity();
  std::size_t top = n;
  for (std::size_t b = 1; b < cuts.size(); ++b)
    for (std::size_t a = cuts.size() > 2 ? 1 : 0; a < (cuts.size() > 2 ? b : 1); ++a) {
      const double sum = spread(0, cuts[a]) + spread(cuts[a], cuts[b]) + spread(cuts[b], n);
      if (sum >= best) continue;
      best = sum;
      top = cuts[b];
    }
  return top == n ? std::numeric_limits<double>::infinity() : sorted[top];
}

class SqueezeBudgets final : public LayerBudgets {
 public:
  explicit SqueezeBudgets(const SqueezeParams& params) : p_(params.p) {}

  bool sees_scores() const override { return true; }
  bool reads_hidden_cosine() const override { return true; }
  double weigh(const LayerTable& table) const override { return table.hidden_cosine; }

  std::vector<double> divide(std::span<const LayerTable> done, std::span<const double> weights,
                             std::size_t n_entries) const override {
    const double limit = least_of_top_group(weights);
    const auto n_done = static_cast<double>(done.size());
    const auto n_least = static_cast<double>(std::count_if(
        weights.begin(), weights.end(), [&](double cosine) { return cosine >= limit; }));
    const auto n_layers = static_cast<double>(done[0].n_layers);
    const double mean = static_cast<double>(n_entries) / n_layers;
    const double free = (n_layers - n_done) / n_done;
    const double most = (n_done - n_least * p_) / (n_done - n_least);
    std::vector<double> out;
    for (const double cosine : weights)
      out.push_back(mean * ((cosine >= limit ? p_ : most) + free));
    return out;
  }

 private:
  double p_;
};

}  // namespace

void register_squeeze(Registry& registry) {
  const std::string paper = "arXiv 2404.04793";
  registry.add_stage<SqueezeBudgets, SqueezeParams>(
      StageKind::kLayers, "squeeze", paper,
      "smaller budgets for layers whose attention hardly turns the hidden state");
  registry.add_preset({"squeeze", "score=h2o select=head(recent=32,sinks=0) layers=squeeze", paper,
                       "SqueezeAttention: H2O with smaller budgets for layers that change little"});
}

}  // namespace precis
