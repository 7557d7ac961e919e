// Budgets of layers by hand: one weight for each layer, or a few that are interpolated over the
// depth. layers=weights(list=3-1) falls linearly from the first layer to the last.
//
// Keep ratios per layer are written so too: with list=50-30-10, in percent or any other unit, and a
// --keep of their mean, 30%, every layer keeps its own ratio.
#include <algorithm>

#include "base/error.h"
#include "compress/method.h"

namespace precis {

void register_layer_weights(Registry& registry);

namespace {

struct WeightsParams {
  std::vector<double> list = {1};
  std::string fit = "any";

  template <class V>
  void fields(V&& v) {
    v("list", list, 0, 1e6, "weights from the first layer to the last, with - between them");
    v("fit", fit, {"any", "exact"},
      "a list of another length than the model's layers: interpolated, or refused");
  }
};

class LayerWeights final : public LayerBudgets {
 public:
  explicit LayerWeights(const WeightsParams& params)
      : list_(params.list), exact_(params.fit == "exact") {}

  std::vector<double> entries(std::size_t n_layers, std::size_t entries_per_head,
                              const Protection&) const override {
    if (exact_ && list_.size() != n_layers)
      throw Error(
          ErrorCode::kInvalidArgument,
          concat("layers=weights lists budgets of ", list_.size(), " layers, but ", n_layers,
                 " layers of the model can be condensed: they are another model's (fit=any "
                 "spreads them over the depth)"));
    std::vector<double> out(n_layers);
    double sum = 0;
    for (std::size_t l = 0; l < n_layers; ++l) {
      out[l] = weight(l, n_layers);
      sum += out[l];
    }
    // All zero: all alike.
    for (double& share : out)
      share = sum > 0 ? share / sum * static_cast<double>(n_layers * entries_per_head)
                      : static_cast<double>(entries_per_head);
    return out;
  }

 private:
  double weight(std::size_t layer, std::size_t n_layers) const {
    if (list_.size() == n_layers) return list_[layer];
    if (list_.size() == 1 || n_layers == 1) return list_[0];
    const double at = static_cast<double>(layer) * static_cast<double>(list_.size() - 1) /
                      static_cast<double>(n_layers - 1);
    const std::size_t below = std::min(static_cast<std::size_t>(at), list_.size() - 2);
    const double part = at - static_cast<double>(below);
    return list_[below] * (1 - part) + list_[below + 1] * part;
  }

  std::vector<double> list_;
  bool exact_;
};

}  // namespace

void register_layer_weights(Registry& registry) {
  registry.add_stage<LayerWeights, WeightsParams>(StageKind::kLayers, "weights", "generic",
                                                  "budgets of layers in given proportions");
}

}  // namespace precis
