// StreamingLLM: Xiao, Tian, Chen, Han, Lewis, "Efficient Streaming Language Models with Attention
// Sinks", arXiv 2309.17453, section 3.2: the cache is the first 4 tokens and the most recent ones.
//
// With decode=step the cache rolls on as in the paper.
//
// Deviation: without it later tokens are never evicted.
// Deviation: positions are kept, where the paper renumbers the tokens of the cache at every step.
#include "compress/method.h"
#include "compress/step.h"

namespace precis {

void register_streaming(Registry& registry);

namespace {

struct RecencyParams {
  template <class V>
  void fields(V&&) {}
};

class RecencyScorer final : public Scorer, public StepScorer {
 public:
  explicit RecencyScorer(const RecencyParams&) {}

  // Token numbers are exact in f32 up to 16.7 million tokens.
  void score(HeadView&, std::span<float> scores) const override {
    for (std::size_t token = 0; token < scores.size(); ++token)
      scores[token] = static_cast<float>(token);
  }

  const StepScorer* step() const override { return this; }
  std::size_t n_fields() const override { return 0; }
  void carry(HeadView&, std::span<const std::uint32_t>, const StepFields&) const override {}
  void observe(const StepHead&) const override {}
  void importance(const StepHead& head, std::span<float> scores) const override {
    for (std::size_t i = 0; i < scores.size(); ++i)
      scores[i] = static_cast<float>(head.positions[i]);
  }
};

}  // namespace

void register_streaming(Registry& registry) {
  registry.add_stage<RecencyScorer, RecencyParams>(StageKind::kScore, "recency", "arXiv 2309.17453",
                                                   "later tokens score higher");
  registry.add_preset({"streaming", "score=recency select=head(recent=16,sinks=4)",
                       "arXiv 2309.17453",
                       "StreamingLLM: the first tokens and the most recent ones"});
}

}  // namespace precis
