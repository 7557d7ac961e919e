// K-norm: Devoto, Zhao, Scardapane, Minervini, "A Simple and Effective L2 Norm-Based Strategy for
// KV Cache Compression", arXiv 2406.11430: tokens whose keys have a small L2 norm get much
// attention, so the score is -||k_j||. Neither queries nor values are read.
//
// Deviation: every layer is condensed. The paper spares the first layers of some models, where norm
//   and attention are hardly related; a budget per layer would need a seam.
// Deviation: the norm is that of the key after RoPE, as it is stored. RoPE leaves norms unchanged,
//   but for YaRN's factor, which all tokens share.
#include "compress/method.h"
#include "kernels/rows.h"

namespace precis {

void register_knorm(Registry& registry);

namespace {

struct KnormParams {
  template <class V>
  void fields(V&&) {}
};

class KnormScorer final : public Scorer {
 public:
  explicit KnormScorer(const KnormParams&) {}

  void score(HeadView& head, std::span<float> scores) const override {
    row_norms(head.entries.keys, head.n_tokens, head.head_dim, scores.data());
    for (float& score : scores) score = -score;
  }
};

}  // namespace

void register_knorm(Registry& registry) {
  registry.add_stage<KnormScorer, KnormParams>(StageKind::kScore, "knorm", "arXiv 2406.11430",
                                               "keys of small L2 norm score higher");
  registry.add_preset({"knorm", "score=knorm select=head(recent=0,sinks=0)", "arXiv 2406.11430",
                       "K-norm: tokens whose keys have the smallest norms, nothing protected"});
}

}  // namespace precis
