// Selection of the highest scores, for any scorer.
//
//   select=head    Every KV head keeps its protected tokens and its own best m - protected others.
//   select=shared  The GQA mode of SelKV (arXiv 2607.16213, Eq. 2): the layer keeps the union of
//                  the heads' own sets, trimmed to m by the mean score over heads. The targets of a
//                  head, S_h, are the kept tokens of its own set, plus the protected tokens.
//
// The union holds at least one head's own m tokens, so a layer always keeps exactly m per head.
// Ties go to the earlier token.
#include <algorithm>

#include "base/error.h"
#include "compress/method.h"
#include "methods/kept_tokens.h"

namespace precis {

void register_top_entries(Registry& registry);

namespace {

// The best tokens of one head outside of the protected ones.
Tokens own_best(const LayerTable& table, std::size_t head) {
  Tokens tokens = open_tokens(table);
  keep_highest(tokens, open_entries(table), table.scores + head * table.n_tokens);
  return tokens;
}

class HeadSelector final : public Selector {
 public:
  explicit HeadSelector(const ProtectionParams& params) : protection_(params.protection()) {}

  Protection protection() const override { return protection_; }

  std::vector<HeadPlan> select(const LayerTable& table) const override {
    std::vector<HeadPlan> plans(table.n_kv_heads);
    for (std::size_t h = 0; h < plans.size(); ++h) {
      plans[h].kept = with_protected(table, own_best(table, h));
      plans[h].targets = plans[h].kept;
    }
    return plans;
  }

  StepScope step_scope() const override { return StepScope::kHead; }

 private:
  Protection protection_;
};

class SharedSelector final : public Selector {
 public:
  explicit SharedSelector(const ProtectionParams& params) : protection_(params.protection()) {}

  Protection protection() const override { return protection_; }

  std::vector<HeadPlan> select(const LayerTable& table) const override {
    const std::vector<double> sums = summed_scores(table);
    std::vector<Tokens> own(table.n_kv_heads);
    Tokens kept;
    for (std::size_t h = 0; h < own.size(); ++h) {
      own[h] = own_best(table, h);
      kept.insert(kept.end(), own[h].begin(), own[h].end());
    }
    std::sort(kept.begin(), kept.end());
    kept.erase(std::unique(kept.begin(), kept.end()), kept.end());
    const std::size_t count = open_entries(table);
    PRECIS_CHECK(kept.size() >= count, kept.size(), " in the union of ", count);
    keep_highest(kept, count, sums.data());

    std::vector<HeadPlan> plans(table.n_kv_heads);
    for (std::size_t h = 0; h < plans.size(); ++h) {
      Tokens targets;
      std::set_intersection(kept.begin(), kept.end(), own[h].begin(), own[h].end(),
                            std::back_inserter(targets));
      plans[h].kept = with_protected(table, kept);
      plans[h].targets = with_protected(table, targets);
    }
    return plans;
  }

 private:
  Protection protection_;
};

}  // namespace

void register_top_entries(Registry& registry) {
  registry.add_stage<HeadSelector, ProtectionParams>(StageKind::kSelect, "head", "generic",
                                                     "every KV head keeps its own best tokens");
  registry.add_stage<SharedSelector, ProtectionParams>(
      StageKind::kSelect, "shared", "arXiv 2607.16213, Eq. 2",
      "the KV heads of a layer keep the same tokens: their union, trimmed by the mean score");
}

}  // namespace precis
