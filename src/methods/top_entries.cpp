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

namespace precis {

void register_top_entries(Registry& registry);

namespace {

struct TopParams {
  int recent = 16;
  int sinks = 0;

  template <class V>
  void fields(V&& v) {
    v("recent", recent, 0, 1 << 20, "last tokens that are always kept");
    v("sinks", sinks, 0, 1 << 20, "first tokens that are always kept");
  }

  Protection protection() const {
    return {static_cast<std::size_t>(sinks), static_cast<std::size_t>(recent)};
  }
};

using Tokens = std::vector<std::uint32_t>;

// Leaves the `count` highest scores of `tokens`, ascending by token.
template <class Score>
void keep_highest(Tokens& tokens, std::size_t count, const Score* scores) {
  const auto before = [scores](std::uint32_t a, std::uint32_t b) {
    return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
  };
  if (count < tokens.size()) {
    std::nth_element(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count),
                     tokens.end(), before);
    tokens.resize(count);
  }
  std::sort(tokens.begin(), tokens.end());
}

// The best tokens of one head outside of the protected ones.
Tokens own_best(const LayerTable& table, std::size_t head) {
  const Protection& protection = table.protection;
  Tokens tokens;
  for (std::size_t t = protection.n_sinks; t + protection.n_recent < table.n_tokens; ++t)
    tokens.push_back(static_cast<std::uint32_t>(t));
  keep_highest(tokens, table.entries_per_head - protection.count(table.n_tokens),
               table.scores + head * table.n_tokens);
  return tokens;
}

// first tokens + tokens + last tokens
Tokens with_protected(const LayerTable& table, const Tokens& tokens) {
  const Protection& protection = table.protection;
  Tokens out;
  out.reserve(tokens.size() + protection.count(table.n_tokens));
  for (std::size_t t = 0; t < protection.n_sinks; ++t) out.push_back(static_cast<std::uint32_t>(t));
  out.insert(out.end(), tokens.begin(), tokens.end());
  for (std::size_t t = table.n_tokens - protection.n_recent; t < table.n_tokens; ++t)
    out.push_back(static_cast<std::uint32_t>(t));
  return out;
}

class HeadSelector final : public Selector {
 public:
  explicit HeadSelector(const TopParams& params) : protection_(params.protection()) {}

  Protection protection() const override { return protection_; }

  std::vector<HeadPlan> select(const LayerTable& table) const override {
    std::vector<HeadPlan> plans(table.n_kv_heads);
    for (std::size_t h = 0; h < plans.size(); ++h) {
      plans[h].kept = with_protected(table, own_best(table, h));
      plans[h].targets = plans[h].kept;
    }
    return plans;
  }

 private:
  Protection protection_;
};

class SharedSelector final : public Selector {
 public:
  explicit SharedSelector(const TopParams& params) : protection_(params.protection()) {}

  Protection protection() const override { return protection_; }

  std::vector<HeadPlan> select(const LayerTable& table) const override {
    // The sum over heads orders tokens as the mean does.
    std::vector<double> sums(table.n_tokens, 0.0);
    std::vector<Tokens> own(table.n_kv_heads);
    Tokens kept;
    for (std::size_t h = 0; h < own.size(); ++h) {
      own[h] = own_best(table, h);
      kept.insert(kept.end(), own[h].begin(), own[h].end());
      const float* scores = table.scores + h * table.n_tokens;
      for (std::size_t t = 0; t < table.n_tokens; ++t) sums[t] += static_cast<double>(scores[t]);
    }
    std::sort(kept.begin(), kept.end());
    kept.erase(std::unique(kept.begin(), kept.end()), kept.end());
    const std::size_t count = table.entries_per_head - protection_.count(table.n_tokens);
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
  registry.add_stage<HeadSelector, TopParams>(StageKind::kSelect, "head", "generic",
                                              "every KV head keeps its own best tokens");
  registry.add_stage<SharedSelector, TopParams>(
      StageKind::kSelect, "shared", "arXiv 2607.16213, Eq. 2",
      "the KV heads of a layer keep the same tokens: their union, trimmed by the mean score");
}

}  // namespace precis
