// SnapKV: Li, Huang, Yang, Venkitesh, Locatelli, Ye, Cai, Lewis, Chen, "SnapKV: LLM Knows What You
// Are Looking for Before Generation", arXiv 2404.14469, listing 1: the attention of the last
// `window` queries is summed per prompt token, pooled over neighbours, and the best tokens are kept
// beside the window.
//
// Defaults are those of the paper's LongBench runs (window 32, kernel 7, max pooling). The class in
// the authors' code defaults to window 64, kernel 5, average pooling.
//
// Deviation: a KV head is scored by the mean over its group of query heads, as in kvpress. The
//   paper's code repeats the keys and keeps a set per query head, which stores a shared row again
//   for each of them.
// Deviation: the mean over the window, not the sum; the order of the tokens is the same.
// Deviation: tokens of the window get their own pooled mass. The paper gives them none because it
//   keeps them always, as the preset does; their scores matter only beside other selectors.
// Deviation: no special case for a prompt below the capacity; the driver leaves it whole.
#include <algorithm>

#include "compress/method.h"
#include "methods/pooling.h"

namespace precis {

void register_snapkv(Registry& registry);

namespace {

struct SnapParams {
  int window = 32;
  int pool = 7;
  std::string kind = "max";

  template <class V>
  void fields(V&& v) {
    v("window", window, 1, 4096, "last queries whose attention is observed");
    v("pool", pool, 1, 255, "width of the pooling kernel, odd");
    v("kind", kind, {"avg", "max"}, "pooling");
  }
};

class SnapScorer final : public Scorer {
 public:
  explicit SnapScorer(const SnapParams& params) : params_(params) { check_pool_width(params.pool); }

  std::size_t queries_needed(std::size_t n_tokens) const override {
    return std::min(static_cast<std::size_t>(params_.window), n_tokens);
  }

  void score(HeadView& head, std::span<float> scores) const override {
    const std::size_t window = queries_needed(head.n_tokens);
    const std::span<const float> mass = head.window_mass(window);
    // The kernel does not reach from the prefix into the window: listing 1 cuts the window off
    // first.
    const std::size_t prefix = head.n_tokens - window;
    pool(mass.first(prefix), scores.first(prefix));
    pool(mass.subspan(prefix), scores.subspan(prefix));
    const float rows = static_cast<float>(window * head.group);
    for (float& score : scores) score /= rows;
  }

 private:
  void pool(std::span<const float> mass, std::span<float> pooled) const {
    if (params_.kind == "max")
      max_pool(mass, params_.pool, pooled);
    else
      average_pool(mass, params_.pool, pooled);
  }

  SnapParams params_;
};

}  // namespace

void register_snapkv(Registry& registry) {
  registry.add_stage<SnapScorer, SnapParams>(StageKind::kScore, "snapkv", "arXiv 2404.14469",
                                             "pooled attention of the last queries");
  registry.add_preset({"snapkv", "score=snapkv select=head(recent=32,sinks=0)", "arXiv 2404.14469",
                       "SnapKV: tokens that the last queries attend to, and the window itself"});
}

}  // namespace precis
