// Random eviction: the floor that every method has to beat.
//
// The score of a token is a hash of (seed, layer, head, token), so the choice depends on the seed
// only, never on threads or on the order of calls.
#include "compress/method.h"
#include "methods/hashed_uniform.h"

namespace precis {

void register_random(Registry& registry);

namespace {

struct RandomParams {
  template <class V>
  void fields(V&&) {}
};

class RandomScorer final : public Scorer {
 public:
  explicit RandomScorer(const RandomParams&) {}

  void score(HeadView& head, std::span<float> scores) const override {
    for (std::size_t token = 0; token < scores.size(); ++token)
      scores[token] = hashed_uniform(head.seed, token);
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
