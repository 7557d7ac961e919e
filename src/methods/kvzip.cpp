// KVzip: Kim, Kim, Kwon, Lee, Yun, Song, "KVzip: Query-Agnostic KV Cache Compression with Context
// Reconstruction", arXiv 2505.23416, with the authors' prompts: the prompt is repeated after itself
// in chunks, and a token's score is the most attention that it gets from the repetition of its own
// chunk (engine/repeat_pass.h). The best entries of all layers and heads are kept: a set that does
// not depend on a question.
//
// Cost: a second prefill whose tokens all see the whole prompt, so that its attention is about
// twice the first one's: 2.3 prefills at 7,662 tokens of SmolLM2. The report says how long it took.
//
// Deviation: what the chat template puts before the user's words is repeated and scored as the rest
//   is. The authors' code and kvpress give it no score, so that it is evicted first.
// Deviation: every head keeps 8 entries beside the first four tokens; the paper has no floor.
// Deviation: layers with a sliding window take part in the repetition but are not condensed.
// Deviation: of a prompt that is read in parts, each part is repeated after itself, with all tokens
//   up to its end before it.
#include <cmath>

#include "base/error.h"
#include "compress/method.h"

namespace precis {

void register_kvzip(Registry& registry);

namespace {

struct KvzipParams {
  int chunk = 2048;

  template <class V>
  void fields(V&& v) {
    v("chunk", chunk, 16, 1 << 20, "tokens of the prompt that are repeated at a time");
  }
};

class KvzipScorer final : public Scorer {
 public:
  explicit KvzipScorer(const KvzipParams& params) : params_(params) {}

  std::size_t repeat_chunk() const override { return static_cast<std::size_t>(params_.chunk); }

  void score(HeadView& head, std::span<float> scores) const override {
    PRECIS_CHECK(head.log_peaks != nullptr, "the prompt was not repeated");
    for (std::size_t t = 0; t < scores.size(); ++t) scores[t] = std::exp(head.log_peaks[t]);
  }

 private:
  KvzipParams params_;
};

}  // namespace

void register_kvzip(Registry& registry) {
  const std::string paper = "arXiv 2505.23416";
  registry.add_stage<KvzipScorer, KvzipParams>(
      StageKind::kScore, "kvzip", paper,
      "the most attention that a token gets when the model repeats the prompt");
  registry.add_preset({"kvzip", "score=kvzip select=layer(recent=0,sinks=4) layers=global", paper,
                       "KVzip: what the model needs to repeat the prompt; a second prefill"});
}

}  // namespace precis
