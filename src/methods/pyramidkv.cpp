// PyramidKV: Cai, Zhang, Gao, Liu, Li, Liu, Lu, Xiong, Dong, Hu, Xiao, "PyramidKV: Dynamic KV Cache
// Compression based on Pyramidal Information Funneling", arXiv 2406.02069, and the authors' code:
// the scores are SnapKV's; beside the window w, whose tokens are always kept, the last layer gets
// (m - w) / beta tokens and the first one 2 (m - w) - (m - w) / beta, falling linearly between.
//
// Defaults: beta 20, as in the code; window 32 and pooling as for SnapKV here.
//
// Deviation: budgets are counted over the layers that can be condensed; layers with a sliding
//   window take no part.
// Deviation: no layer gets all tokens; at large budgets, where the first layers would get more
//   than there are, the rest goes to the others.
#include <algorithm>

#include "compress/method.h"

namespace precis {

void register_pyramidkv(Registry& registry);

namespace {

struct PyramidParams {
  double beta = 20;

  template <class V>
  void fields(V&& v) {
    v("beta", beta, 1, 1e6, "how much less than the mean the last layer gets");
  }
};

class PyramidBudgets final : public LayerBudgets {
 public:
  explicit PyramidBudgets(const PyramidParams& params) : beta_(params.beta) {}

  std::vector<double> entries(std::size_t n_layers, std::size_t entries_per_head,
                              const Protection& protection) const override {
    const auto n_protected = static_cast<double>(protection.n_sinks + protection.n_recent);
    const double free = std::max(0.0, static_cast<double>(entries_per_head) - n_protected);
    const double least = free / beta_;
    const double most = 2 * free - least;
    const double step = n_layers > 1 ? (most - least) / static_cast<double>(n_layers - 1) : 0;
    std::vector<double> out;
    for (std::size_t l = 0; l < n_layers; ++l)
      out.push_back(n_protected + (n_layers > 1 ? most - step * static_cast<double>(l) : free));
    return out;
  }

 private:
  double beta_;
};

}  // namespace

void register_pyramidkv(Registry& registry) {
  registry.add_stage<PyramidBudgets, PyramidParams>(
      StageKind::kLayers, "pyramid", "arXiv 2406.02069", "budgets fall linearly over the layers");
  registry.add_preset({"pyramidkv", "score=snapkv select=head(recent=32,sinks=0) layers=pyramid",
                       "arXiv 2406.02069", "PyramidKV: SnapKV with more entries in early layers"});
}

}  // namespace precis
