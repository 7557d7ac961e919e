// ChunkKV: Liu, Tang, Dong, Li, Liu, Li, Hu, Chu, "ChunkKV: Semantic-Preserving KV Cache
// Compression for Efficient Long-Context LLM Inference", arXiv 2502.00299: the prompt is cut into
// chunks of consecutive tokens, which are kept or evicted whole. A chunk scores the mean over its
// tokens of the sum over the heads of the layer (kvpress); tokens left over at the end are one more
// chunk.
//
// Deviation: protected tokens belong to no chunk's score and do not count as its length. kvpress
//   protects none and gives the window the largest score instead.
// Deviation: where the next best chunk does not fit any more, its best tokens by the summed score
//   fill the budget, so that methods compare at equal memory. kvpress rounds down to whole chunks.
// Deviation: every layer chooses its own chunks. The paper reuses a layer's choice in the next one.
// Deviation: the preset scores with SnapKV at this project's defaults (window 32, kernel 7, max).
#include <algorithm>

#include "compress/method.h"
#include "methods/kept_tokens.h"

namespace precis {

void register_chunkkv(Registry& registry);

namespace {

struct ChunkParams : ProtectionParams {
  int length = 20;

  template <class V>
  void fields(V&& v) {
    ProtectionParams::fields(v);
    v("length", length, 1, 1 << 20, "tokens per chunk");
  }
};

class ChunkSelector final : public Selector {
 public:
  explicit ChunkSelector(const ChunkParams& params) : params_(params) {}

  Protection protection() const override { return params_.protection(); }

  std::vector<HeadPlan> select(const LayerTable& table) const override {
    const std::vector<double> sums = summed_scores(table);
    const auto length = static_cast<std::size_t>(params_.length);
    std::vector<Tokens> chunks((table.n_tokens + length - 1) / length);
    for (const std::uint32_t token : open_tokens(table)) chunks[token / length].push_back(token);
    std::vector<double> means;
    Tokens order;  // chunks that have open tokens, best first
    for (std::size_t c = 0; c < chunks.size(); ++c) {
      double sum = 0;
      for (const std::uint32_t token : chunks[c]) sum += sums[token];
      means.push_back(chunks[c].empty() ? 0 : sum / static_cast<double>(chunks[c].size()));
      if (!chunks[c].empty()) order.push_back(static_cast<std::uint32_t>(c));
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return means[a] > means[b]; });
    Tokens kept;
    for (const std::uint32_t c : order) {
      keep_highest(chunks[c], open_entries(table) - kept.size(), sums.data());
      kept.insert(kept.end(), chunks[c].begin(), chunks[c].end());
    }
    std::sort(kept.begin(), kept.end());
    return same_plan_for_all(table, kept);
  }

 private:
  ChunkParams params_;
};

}  // namespace

void register_chunkkv(Registry& registry) {
  const std::string paper = "arXiv 2502.00299";
  registry.add_stage<ChunkSelector, ChunkParams>(
      StageKind::kSelect, "chunk", paper,
      "whole chunks of tokens, the same in the KV heads of a layer");
  registry.add_preset({"chunkkv", "score=snapkv select=chunk(recent=32,sinks=0)", paper,
                       "ChunkKV over SnapKV: chunks that the last queries attend to"});
}

}  // namespace precis
