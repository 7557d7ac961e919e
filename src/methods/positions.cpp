// Where kept entries stand for what comes after the prompt.
//
//   positions=compact   SelKV, arXiv 2607.16213, Eq. 7: the entries of a head are turned to the
//                       positions 0, 1, ... in their order, and the text goes on behind them. Off
//                       in the paper's defaults: it hurts retrieval that depends on positions, and
//                       keeps positions inside of what the model was trained on. StreamingLLM
//                       (arXiv 2309.17453) works so at every step, KeyRerotationPress of kvpress
//                       once.
//
// Keys are turned once, in f32, from the row as the prefill stored it. What merging learns from the
// attention of the last queries (a_i and R of SelKV) is measured with keys and queries at their new
// places, an evicted token standing where the next kept one does.
//
// Deviation: heads and layers may keep different numbers of entries; the text goes on behind the
//   longest list. The paper keeps as many in all.
// Deviation: scores are those of the prompt as it was read.
// Deviation: layers with a sliding window keep their rows, turned by as much as what comes after is
//   moved, so that distances to it stay.
// Deviation: layers that give up entries for later ones measure with the entries that they have at
//   that time.
#include "compress/method.h"

namespace precis {

void register_positions(Registry& registry);

namespace {

struct CompactParams {
  template <class V>
  void fields(V&&) {}
};

class CompactPositions final : public Positioner {
 public:
  explicit CompactPositions(const CompactParams&) {}

  std::vector<std::int32_t> places(std::span<const std::uint32_t> kept,
                                   std::size_t n_tokens) const override {
    std::vector<std::int32_t> out(n_tokens);
    std::size_t n_before = 0;
    for (std::size_t t = 0; t < n_tokens; ++t) {
      out[t] = static_cast<std::int32_t>(n_before);
      if (n_before < kept.size() && kept[n_before] == t) ++n_before;
    }
    return out;
  }
};

}  // namespace

void register_positions(Registry& registry) {
  registry.add_stage<CompactPositions, CompactParams>(
      StageKind::kPositions, "compact", "arXiv 2607.16213, Eq. 7",
      "kept entries move together, to positions from 0 on");
}

}  // namespace precis
