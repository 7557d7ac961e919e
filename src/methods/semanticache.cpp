// SemantiCache: Wu, Lin, Chen, Lu, Zeng, Zhan, Zheng, Kim, "SemantiCache: Efficient KV Cache
// Compression via Semantic Chunking and Clustered Merging", arXiv 2603.14303 (ICASSP 2026): the
// cache is cut into chunks at delimiters; in each, Greedy Seed-Based Clustering groups tokens
// around seeds; a cluster becomes one entry, its semantic core; and Proportional Attention makes up
// for the tokens that an entry stands for. Only the abstract could be read. What is here is worked
// out from it:
//
//   clusters   the seeds of a chunk in the order of their attention; each takes the tokens that are
//              left of which the key has a cosine of at least `threshold` to its own
//   core       the mean of the keys and the mean of the values of seed and members
//   attention  logit bias log of the size of the cluster: bias=ratio(alpha=1,mode=count)
//
// Cost: linear in the prompt, with chunks of at most `chunk` tokens; beside the attention of the
// last `window` queries.
//
// Deviation: stages do not see what tokens say, so there are no delimiters. split=fixed cuts after
//   every `chunk` tokens; split=keys also where the cosine of a key to the one before it falls
//   below the mean of all such cosines by more than their standard deviation.
// Deviation: the kept tokens are the seeds, and tokens that no seed takes are dropped: so the
// budget
//   is met. In the paper the clusters decide how much is kept.
// Deviation: order of seeds, threshold and means are assumptions; see above.
// Deviation: the first 4 tokens are no seeds.
// Deviation: the preset scores with SnapKV at this project's defaults.
// Deviation: cap, off by default, leaves out the members of a cluster that are least like the seed.
#include <algorithm>
#include <cmath>

#include "compress/method.h"
#include "methods/nearest_key.h"
#include "methods/value_fold.h"

namespace precis {

void register_semanticache(Registry& registry);

namespace {

struct SemantiParams : CapParams {
  int chunk = 32;
  std::string split = "keys";
  double threshold = 0.7;
  int window = 32;
  int sinks = 4;

  template <class V>
  void fields(V&& v) {
    v("chunk", chunk, 1, 4096, "tokens of a chunk, at most; tokens merge inside of their chunk");
    v("split", split, {"fixed", "keys"}, "chunks of equal length, or also cut where keys change");
    v("threshold", threshold, -1, 1, "least cosine to the seed of keys of one cluster");
    v("window", window, 1, 4096, "last queries whose attention orders the seeds");
    v("sinks", sinks, 0, 1 << 20, "first tokens, which never receive");
    CapParams::fields(v);
  }
};

class SemantiMerger final : public Merger {
 public:
  explicit SemantiMerger(const SemantiParams& params) : params_(params) {}

  std::size_t queries_needed(std::size_t n_tokens) const override {
    return std::min(static_cast<std::size_t>(params_.window), n_tokens);
  }

  HeadMerge merge(HeadView& head, const HeadPlan& plan) const override {
    std::vector<std::uint8_t> evicted(head.n_tokens, 1);
    for (const std::uint32_t token : plan.kept) evicted[token] = 0;
    std::vector<Member> members(head.n_tokens);
    std::size_t target = 0;
    std::size_t slot = 0;
    std::size_t begin = 0;
    for (const std::size_t end : chunk_ends(head)) {
      throw_if_cancelled(head.cancel);
      std::vector<Seed> seeds;
      for (; target < plan.targets.size() && plan.targets[target] < end; ++target) {
        while (plan.kept[slot] != plan.targets[target]) ++slot;
        if (plan.targets[target] >= static_cast<std::uint32_t>(params_.sinks))
          seeds.push_back({plan.targets[target], static_cast<std::uint32_t>(slot)});
      }
      cluster(head, seeds, begin, end, evicted, members);
      begin = end;
    }
    std::vector<Arrival> arrivals;
    std::vector<float> cosines;
    for (std::uint32_t t = 0; t < head.n_tokens; ++t) {
      if (members[t].slot == kNone) continue;
      arrivals.push_back({t, members[t].slot, 1.0f});
      cosines.push_back(members[t].cosine);
    }
    cap_arrivals(arrivals, plan.kept.size(), params_.cap, cosines);
    const Fold fold = make_fold(std::vector<float>(plan.kept.size(), 1.0f), std::move(arrivals));
    HeadMerge out = fold_values(head, plan, fold);
    fold_keys(head, plan, fold, out);
    for (std::size_t i = 0; i < plan.kept.size(); ++i)
      out.mass_ratio[i] = 1.0f + static_cast<float>(out.n_merged[i]);
    return out;
  }

 private:
  static constexpr std::uint32_t kNone = 0xffffffffu;
  struct Seed {
    std::uint32_t token;
    std::uint32_t slot;
  };
  struct Member {
    std::uint32_t slot = kNone;
    float cosine = 0;
  };

  // One past the last token of every chunk.
  std::vector<std::size_t> chunk_ends(const HeadView& head) const {
    const auto most = static_cast<std::size_t>(params_.chunk);
    std::vector<float> cosines(head.n_tokens, 1.0f);
    double least = -2;
    if (params_.split == "keys" && head.n_tokens > 1) {
      double sum = 0;
      double squares = 0;
      for (std::size_t t = 1; t < head.n_tokens; ++t) {
        cosines[t] = key_cosine(head, t - 1, t);
        sum += static_cast<double>(cosines[t]);
        squares += static_cast<double>(cosines[t]) * static_cast<double>(cosines[t]);
      }
      const auto n = static_cast<double>(head.n_tokens - 1);
      least = sum / n - std::sqrt(std::max(squares / n - sum / n * (sum / n), 0.0));
    }
    std::vector<std::size_t> ends;
    std::size_t begin = 0;
    for (std::size_t t = 1; t < head.n_tokens; ++t)
      if (t - begin == most || static_cast<double>(cosines[t]) < least) {
        ends.push_back(t);
        begin = t;
      }
    ends.push_back(head.n_tokens);
    return ends;
  }

  void cluster(HeadView& head, std::vector<Seed>& seeds, std::size_t begin, std::size_t end,
               std::vector<std::uint8_t>& evicted, std::vector<Member>& members) const {
    const std::span<const float> mass = head.window_mass(static_cast<std::size_t>(params_.window));
    std::stable_sort(seeds.begin(), seeds.end(),
                     [&](const Seed& a, const Seed& b) { return mass[a.token] > mass[b.token]; });
    for (const Seed& seed : seeds)
      for (std::size_t t = begin; t < end; ++t) {
        if (evicted[t] == 0) continue;
        const float cosine = key_cosine(head, seed.token, t);
        if (static_cast<double>(cosine) < params_.threshold) continue;
        members[t] = {seed.slot, cosine};
        evicted[t] = 0;
      }
  }

  SemantiParams params_;
};

}  // namespace

void register_semanticache(Registry& registry) {
  const std::string paper = "arXiv 2603.14303";
  registry.add_stage<SemantiMerger, SemantiParams>(
      StageKind::kMerge, "semanticache", paper,
      "merges keys and values of the similar tokens of a chunk into its kept tokens");
  registry.add_preset({"semanticache",
                       "score=snapkv select=head(recent=32,sinks=4) merge=semanticache "
                       "bias=ratio(alpha=1,mode=count)",
                       paper, "SemantiCache without texts: clusters inside of chunks merge"});
}

}  // namespace precis
