// KeyDiff: Park, Jones, Morse, Goel, Lee, Lott, "KeyDiff: Key Similarity-Based KV Cache Eviction
// for Long-Context LLM Inference in Resource-Constrained Environments", arXiv 2504.15364: the
// anchor is the mean of the normalised keys, and the score is -cos(k_j, anchor), so that keys which
// differ from the rest are kept. Neither queries nor values are read.
//
// Deviation: the whole prompt is scored at once. The paper condenses block by block, each time over
//   what is in the cache.
// Deviation: a zero key, or a zero anchor, has no direction: cosine 0.
#include <algorithm>
#include <cmath>

#include "compress/method.h"
#include "kernels/rows.h"

namespace precis {

void register_keydiff(Registry& registry);

namespace {

struct KeydiffParams {
  template <class V>
  void fields(V&&) {}
};

class KeydiffScorer final : public Scorer {
 public:
  explicit KeydiffScorer(const KeydiffParams&) {}

  void score(HeadView& head, std::span<float> scores) const override {
    const std::size_t width = head.head_dim;
    std::vector<float> norms(head.n_tokens);
    row_norms(head.entries.keys, head.n_tokens, width, norms.data());
    std::vector<float> key(width);
    // In double: at the end of a long prompt a f32 sum would lose what one key adds.
    std::vector<double> anchor(width, 0.0);
    for (std::size_t t = 0; t < head.n_tokens; ++t) {
      if (!(norms[t] > 0.0f)) continue;
      convert_rows(head.entries.keys + t * width, key.data(), width);
      for (std::size_t c = 0; c < width; ++c)
        anchor[c] += static_cast<double>(key[c]) / static_cast<double>(norms[t]);
    }
    double square = 0;
    for (const double x : anchor) square += x * x;
    const double anchor_norm = std::sqrt(square);
    for (std::size_t t = 0; t < head.n_tokens; ++t) {
      convert_rows(head.entries.keys + t * width, key.data(), width);
      double product = 0;
      for (std::size_t c = 0; c < width; ++c) product += static_cast<double>(key[c]) * anchor[c];
      const double norms_product = static_cast<double>(norms[t]) * anchor_norm;
      scores[t] = norms_product > 0 ? static_cast<float>(-product / norms_product) : 0.0f;
    }
  }
};

}  // namespace

void register_keydiff(Registry& registry) {
  registry.add_stage<KeydiffScorer, KeydiffParams>(StageKind::kScore, "keydiff", "arXiv 2504.15364",
                                                   "keys unlike the mean key score higher");
  registry.add_preset({"keydiff", "score=keydiff select=head(recent=0,sinks=0)", "arXiv 2504.15364",
                       "KeyDiff: tokens whose keys differ most from the mean key"});
}

}  // namespace precis
