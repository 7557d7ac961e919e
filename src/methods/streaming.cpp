// StreamingLLM: Xiao, Tian, Chen, Han, Lewis, "Efficient Streaming Language Models with Attention
// Sinks", arXiv 2309.17453, section 3.2: the cache is the first 4 tokens and the most recent ones.
//
// Deviation: positions are kept, and later tokens are never evicted. The paper renumbers the tokens
//   of a rolling cache at every step; here the prompt is condensed once.
#include "compress/method.h"

namespace precis {

void register_streaming(Registry& registry);

namespace {

struct RecencyParams {
  template <class V>
  void fields(V&&) {}
};

class RecencyScorer final : public Scorer {
 public:
  explicit RecencyScorer(const RecencyParams&) {}

  // Token numbers are exact in f32 up to 16.7 million tokens.
  void score(HeadView&, std::span<float> scores) const override {
    for (std::size_t token = 0; token < scores.size(); ++token)
      scores[token] = static_cast<float>(token);
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
