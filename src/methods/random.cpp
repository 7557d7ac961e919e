// Random eviction: the floor that every method has to beat.
//
// The score of a token is a hash of (seed, layer, head, token), so the choice depends on the seed
// only, never on threads or on the order of calls.
#include "compress/method.h"

namespace precis {

void register_random(Registry& registry);

namespace {

struct RandomParams {
  template <class V>
  void fields(V&&) {}
};

// SplitMix64 finaliser; HeadView::seed is already mixed with layer and head.
std::uint64_t hash(std::uint64_t seed, std::uint64_t token) {
  std::uint64_t z = seed + 0x9e3779b97f4a7c15u * (token + 1);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

class RandomScorer final : public Scorer {
 public:
  explicit RandomScorer(const RandomParams&) {}

  void score(HeadView& head, std::span<float> scores) const override {
    for (std::size_t token = 0; token < scores.size(); ++token)
      scores[token] =
          static_cast<float>(hash(head.seed, token) >> 40) * 0x1p-24f;  // exact, in [0, 1)
  }
};

}  // namespace

void register_random(Registry& registry) {
  registry.add_stage<RandomScorer, RandomParams>(StageKind::kScore, "random", "baseline",
                                                 "uniform random scores, fixed by the seed");
  registry.add_preset({"random", "score=random select=head(recent=16,sinks=4)", "baseline",
                       "keeps random tokens beside the first and last ones"});
}

}  // namespace precis
