// KeepKV: Tian, Wang, Peng, Yuan, Wang, Bairen, Liu, Cui, Yang, "KeepKV: Achieving Periodic
// Lossless KV Cache Compression for Efficient LLM Inference", arXiv 2504.09936 v2 (AAAI 2026;
// github.com/ kkvcache/KeepKV, utils_hh/modify_llama_oursk.py): each evicted token goes to the kept
// token with the most similar key, if their cosine is at least 0.8. An entry holds a vote per token
// that it stands for, and counts in attention as often (Eq. 6): bias log p. With s = exp(q k /
// sqrt(d)) and the p members of an entry,
//
//   v <- sum s_i v_i / sum s_i                                                        (Eq. 7)
//   k <- lambda * sum s_i k_i / sum s_i,   lambda = ln(sum s_i / p) / (sum s_i ln s_i / sum s_i)
//
// which leaves the output of that q as it was: q k / sqrt(d) = ln(sum s_i / p). For later queries s
// is a mean over the last `window` queries (Eq. 8).
//
//   keys=paper  Eq. 7
//   keys=mean   lambda = 1: the released code
//   keys=fixed  keys stay
//
// A replication (T0nyN1/kv-cache-merging-limits) lost 10 LongBench points with keys=mean at a 5 %
// budget, and nothing with keys=fixed.
//
// The bias is bias=ratio(alpha=1,mode=count): log(1 + M). mass_ratio is what would leave the sum of
// the scores of an entry as it was, whatever became of its key, and bias=ratio(alpha=1,mode=head)
// adds its log: the votes for keys=paper; for keys=mean at most the votes, since the weighted mean
// of the logits is at least the log of the mean score; for keys=fixed sum s_i over the target's s.
//
// Logits are never exponentiated: ln s is a log-sum-exp, and weights of an entry are relative to
// the largest of its members, at least exp(-60).
//
// Cost: every evicted key is compared with every kept one, quadratic in the prompt; and the logits
// of the last `window` queries are made once more.
//
// Deviation: lambda is singular where the logits of the members cancel, and turns the key around
//   where they have the other sign than the logit that is wanted; the paper says nothing of it.
//   Here lambda is kept in [1/4, 4], and is 1 in the second case. The output then changes.
// Deviation: members of an entry merge at once. Merging them one after another gives the same value
//   and the same logit.
// Deviation: the mean of Eq. 8 is flat, which is its limit for a decay of 1; the paper's decay and
//   window are not given. It goes over the queries that see the token, as the code's does, and over
//   the query heads of a KV head.
// Deviation: it merges after the choice of what is kept, like the code. The paper finds merging
//   before better in the prefill.
// Deviation: with a soft-cap, ln s is the capped logit, and the merged key's logit is capped again.
// Deviation: the preset scores with SnapKV at this project's defaults in place of PyramidInfer.
// Deviation: with positions=compact logits are those of the old places.
// Deviation: votes are what one condensing merges; those of an earlier one are not counted on.
// Deviation: cap, off by default, leaves out the least attended arrivals of a kept token.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "compress/method.h"
#include "methods/nearest_key.h"
#include "methods/value_fold.h"

namespace precis {

void register_keepkv(Registry& registry);

namespace {

constexpr double kLeastLogWeight = -60;
constexpr double kMaxLogRatio = 30;
constexpr double kMaxScale = 4;

struct KeepParams : CapParams {
  double threshold = 0.8;
  std::string keys = "paper";
  int window = 32;
  int sinks = 0;

  template <class V>
  void fields(V&& v) {
    v("threshold", threshold, -1, 1, "least cosine of keys that merge");
    v("keys", keys, {"paper", "mean", "fixed"},
      "merged keys: scaled for an unchanged output, the plain weighted mean, or left as they are");
    v("window", window, 1, 4096, "last queries whose logits weigh the merge");
    v("sinks", sinks, 0, 1 << 20, "first tokens, which never receive");
    CapParams::fields(v);
  }
};

// ln of the mean of exp(logit) over the rows of the last n_window tokens that see a token,
// [tokens].
std::vector<double> log_scores(HeadView& head, std::size_t n_window) {
  const std::size_t n = head.n_tokens;
  PRECIS_CHECK(head.n_queries >= n_window, head.n_queries, " captured, window ", n_window);
  constexpr std::size_t kTokens = 8;  // share the conversion of the keys
  std::vector<float> queries(kTokens * head.group * head.head_dim);
  // Against a log-sum-exp of 0 the kernel's log-probabilities are the logits.
  const std::vector<float> zeros(kTokens * head.group, 0.0f);
  std::vector<float> logits(kTokens * n);
  std::vector<double> largest(n, -std::numeric_limits<double>::infinity());
  std::vector<double> sums(n, 0.0);
  for (std::size_t token = n - n_window; token < n; token += kTokens) {
    throw_if_cancelled(head.cancel);
    const std::size_t count = std::min(kTokens, n - token);
    for (std::size_t t = 0; t < count; ++t)
      for (std::size_t g = 0; g < head.group; ++g)
        std::copy_n(head.query(g, token + t), head.head_dim,
                    queries.data() + (t * head.group + g) * head.head_dim);
    const QueryView view{queries.data(), count, head.group, head.head_dim,
                         head.group * head.head_dim};
    log_block_attention(view, head.entries.keys, token, head.rule, zeros.data(), n, logits.data(),
                        head.scratch());
    for (std::size_t t = 0; t < count; ++t)
      for (std::size_t j = 0; j <= token + t; ++j) {
        const auto logit = static_cast<double>(logits[t * n + j]);
        const double top = std::max(largest[j], logit);
        sums[j] = sums[j] * std::exp(largest[j] - top) + std::exp(logit - top);
        largest[j] = top;
      }
  }
  std::vector<double> scores(n);
  for (std::size_t j = 0; j < n; ++j) {
    const std::size_t n_rows = head.group * std::min(n_window, n - j);
    scores[j] = largest[j] + std::log(sums[j] / static_cast<double>(n_rows));
  }
  return scores;
}

// What Eq. 7 says of one entry, as logarithms.
struct Scores {
  double largest = 0;     // ln s of the member with the most
  double weighted = 0;    // sum s_i ln s_i / sum s_i: the logit of the plain mean of the keys
  double mean = 0;        // ln(sum s_i / p)
  std::size_t votes = 1;  // p
};

class KeepMerger final : public Merger {
 public:
  explicit KeepMerger(const KeepParams& params) : params_(params) {}

  std::size_t queries_needed(std::size_t n_tokens) const override {
    return std::min(static_cast<std::size_t>(params_.window), n_tokens);
  }

  HeadMerge merge(HeadView& head, const HeadPlan& plan) const override {
    const NearestKeys nearest = nearest_keys(head, plan, static_cast<std::size_t>(params_.sinks));
    const std::vector<double> log_s = log_scores(head, queries_needed(head.n_tokens));
    std::vector<Arrival> arrivals;
    std::vector<float> ranks;
    for (std::size_t k = 0; k < nearest.tokens.size(); ++k) {
      if (nearest.slots[k] == NearestKeys::kNone ||
          static_cast<double>(nearest.cosines[k]) < params_.threshold)
        continue;
      arrivals.push_back({nearest.tokens[k], nearest.slots[k], 0.0f});
      ranks.push_back(static_cast<float>(log_s[nearest.tokens[k]]));
    }
    cap_arrivals(arrivals, plan.kept.size(), params_.cap, ranks);
    std::vector<float> own;
    const std::vector<Scores> entries = weigh(plan, log_s, own, arrivals);
    const Fold fold = make_fold(std::move(own), std::move(arrivals));
    HeadMerge out = fold_values(head, plan, fold);
    if (params_.keys != "fixed") fold_keys(head, plan, fold, out);
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (out.changed[i] == 0) continue;
      const double logit = merge_key(entries[i], log_s[plan.kept[i]], out, i);
      const double log_ratio =
          entries[i].mean + std::log(static_cast<double>(entries[i].votes)) - logit;
      out.mass_ratio[i] = static_cast<float>(std::exp(std::clamp(log_ratio, 0.0, kMaxLogRatio)));
    }
    return out;
  }

 private:
  // Fills in the weights, and returns the scores of the entries.
  static std::vector<Scores> weigh(const HeadPlan& plan, const std::vector<double>& log_s,
                                   std::vector<float>& own, std::vector<Arrival>& arrivals) {
    std::vector<Scores> entries(plan.kept.size());
    for (std::size_t i = 0; i < entries.size(); ++i) entries[i].largest = log_s[plan.kept[i]];
    for (const Arrival& arrival : arrivals) {
      Scores& entry = entries[arrival.slot];
      entry.largest = std::max(entry.largest, log_s[arrival.token]);
      ++entry.votes;
    }
    std::vector<double> sums(entries.size(), 0.0);
    const auto weight_of = [&](std::size_t slot, std::size_t token) {
      const double weight =
          std::exp(std::max(log_s[token] - entries[slot].largest, kLeastLogWeight));
      sums[slot] += weight;
      entries[slot].weighted += weight * log_s[token];
      return static_cast<float>(weight);
    };
    for (std::size_t i = 0; i < entries.size(); ++i) own.push_back(weight_of(i, plan.kept[i]));
    for (Arrival& arrival : arrivals) arrival.weight = weight_of(arrival.slot, arrival.token);
    for (std::size_t i = 0; i < entries.size(); ++i) {
      entries[i].weighted /= sums[i];
      entries[i].mean =
          entries[i].largest + std::log(sums[i] / static_cast<double>(entries[i].votes));
    }
    return entries;
  }

  // Scales the merged key of an entry, and returns the logit that its key now gives.
  double merge_key(const Scores& entry, double own_logit, HeadMerge& out, std::size_t slot) const {
    if (params_.keys == "fixed") return own_logit;
    if (params_.keys == "mean") return entry.weighted;
    double scale = 1;
    if ((entry.mean > 0 && entry.weighted > 0) || (entry.mean < 0 && entry.weighted < 0))
      scale = std::clamp(entry.mean / entry.weighted, 1 / kMaxScale, kMaxScale);
    const std::size_t width = out.keys.size() / out.keys_changed.size();
    for (std::size_t c = slot * width; c < (slot + 1) * width; ++c)
      out.keys[c] =
          std::clamp(static_cast<float>(scale) * out.keys[c], -kLargestHalf, kLargestHalf);
    return scale * entry.weighted;
  }

  KeepParams params_;
};

}  // namespace

void register_keepkv(Registry& registry) {
  const std::string paper = "arXiv 2504.09936";
  registry.add_stage<KeepMerger, KeepParams>(
      StageKind::kMerge, "keepkv", paper + ", Eq. 7",
      "merges keys and values into the most similar kept key so that attention stays the same");
  registry.add_preset({"keepkv",
                       "score=snapkv select=head(recent=32,sinks=4) merge=keepkv "
                       "bias=ratio(alpha=1,mode=count)",
                       paper, "KeepKV over SnapKV: votes and moved keys; keys=fixed is safer"});
}

}  // namespace precis
