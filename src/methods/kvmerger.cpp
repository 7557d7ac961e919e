// KVMerger: Wang, Jin, Yu, Zhang, "Model Tells You Where to Merge: Adaptive KV Cache Merging for
// LLMs on Long-Context Tasks", arXiv 2407.08454: consecutive tokens whose keys have a cosine above
// a threshold (0.75) to the one before form a set S. It merges into its pivot p, the member with
// the most attention, keys and values alike, with the weights of a Gaussian kernel:
//
//   g_i = exp(-||k_p - k_i||^2 / (2 sigma^2)),   x_p <- sum over S of g_i x_i / sum over S of g_i
//
// There is no bias.
//
// Cost: linear in the prompt, beside the attention of the last `window` queries.
//
// Deviation: the budget is met by evicting, as in the independent port of
//   T0nyN1/kv-cache-merging-limits (baselines/kvmerger.py). The paper keeps one entry per set and
//   what is left out of all sets. So the pivot is the member with the most attention among those
//   that are kept, a set without one is dropped, and other kept members stay as they are.
// Deviation: sigma^2 is the mean of ||k_p - k_i||^2 over pivot and merging members. The paper's
//   sigma is the mean of g over the set, of which g is itself a function; what it means could not
//   be read at its source.
// Deviation: attention is that of the last `window` queries. The paper's is that of all.
// Deviation: the first 4 tokens are in no set. The paper keeps the tokens with most attention, and
//   recent ones, out of sets.
// Deviation: every KV head has its own sets, and all layers merge. The paper leaves the first two
//   layers and the last one alone.
// Deviation: the preset scores with SnapKV at this project's defaults.
// Deviation: cap, off by default, is this project's.
#include <algorithm>
#include <cmath>

#include "compress/method.h"
#include "kernels/rows.h"
#include "methods/nearest_key.h"
#include "methods/value_fold.h"

namespace precis {

void register_kvmerger(Registry& registry);

namespace {

struct KvmergerParams : CapParams {
  double threshold = 0.75;
  int window = 32;
  int sinks = 4;

  template <class V>
  void fields(V&& v) {
    v("threshold", threshold, -1, 1, "neighbours whose keys have a larger cosine are of one set");
    v("window", window, 1, 4096, "last queries whose attention chooses the pivot");
    v("sinks", sinks, 0, 1 << 20, "first tokens, which are in no set");
    CapParams::fields(v);
  }
};

double squared_distance(const HeadView& head, std::size_t a, std::size_t b) {
  const Half* x = head.entries.keys + a * head.head_dim;
  const Half* y = head.entries.keys + b * head.head_dim;
  double sum = 0;
  for (std::size_t c = 0; c < head.head_dim; ++c) {
    const double difference = static_cast<double>(to_float(x[c]) - to_float(y[c]));
    sum += difference * difference;
  }
  return sum;
}

class KvmergerMerger final : public Merger {
 public:
  explicit KvmergerMerger(const KvmergerParams& params) : params_(params) {}

  std::size_t queries_needed(std::size_t n_tokens) const override {
    return std::min(static_cast<std::size_t>(params_.window), n_tokens);
  }

  HeadMerge merge(HeadView& head, const HeadPlan& plan) const override {
    const std::size_t first = std::min(static_cast<std::size_t>(params_.sinks), head.n_tokens);
    std::vector<std::uint32_t> slots(head.n_tokens, kEvicted);
    for (std::size_t i = 0; i < plan.kept.size(); ++i) slots[plan.kept[i]] = kNoTarget;
    for (std::size_t i = 0, k = 0; i < plan.kept.size() && k < plan.targets.size(); ++i)
      if (plan.kept[i] == plan.targets[k]) {
        slots[plan.kept[i]] = static_cast<std::uint32_t>(i);
        ++k;
      }
    std::vector<Arrival> arrivals;
    for (std::size_t begin = first, end = first; begin < head.n_tokens; begin = end) {
      throw_if_cancelled(head.cancel);
      for (end = begin + 1; end < head.n_tokens && linked(head, end); ++end) continue;
      merge_set(head, begin, end, slots, arrivals);
    }
    cap_arrivals(arrivals, plan.kept.size(), params_.cap);
    const Fold fold = make_fold(std::vector<float>(plan.kept.size(), 1.0f), std::move(arrivals));
    HeadMerge out = fold_values(head, plan, fold);
    fold_keys(head, plan, fold, out);
    return out;
  }

 private:
  // In place of a kept token's slot.
  static constexpr std::uint32_t kEvicted = 0xffffffffu;
  static constexpr std::uint32_t kNoTarget = 0xfffffffeu;

  // Whether a token is of the same set as the one before it.
  bool linked(const HeadView& head, std::size_t token) const {
    return static_cast<double>(key_cosine(head, token - 1, token)) > params_.threshold;
  }

  void merge_set(HeadView& head, std::size_t begin, std::size_t end,
                 const std::vector<std::uint32_t>& slots, std::vector<Arrival>& arrivals) const {
    const std::span<const float> mass = head.window_mass(static_cast<std::size_t>(params_.window));
    std::size_t pivot = end;
    for (std::size_t t = begin; t < end; ++t)
      if (slots[t] < kNoTarget && (pivot == end || mass[t] > mass[pivot])) pivot = t;
    if (pivot == end) return;
    std::vector<std::size_t> members;
    std::vector<double> distances;
    double sum = 0;
    for (std::size_t t = begin; t < end; ++t) {
      if (slots[t] != kEvicted) continue;
      members.push_back(t);
      distances.push_back(squared_distance(head, pivot, t));
      sum += distances.back();
    }
    const double variance = sum / static_cast<double>(members.size() + 1);
    for (std::size_t k = 0; k < members.size(); ++k) {
      // Equal keys are at no distance, whatever sigma.
      const double weight = variance > 0 ? std::exp(-distances[k] / (2 * variance)) : 1.0;
      arrivals.push_back(
          {static_cast<std::uint32_t>(members[k]), slots[pivot], static_cast<float>(weight)});
    }
  }

  KvmergerParams params_;
};

}  // namespace

void register_kvmerger(Registry& registry) {
  const std::string paper = "arXiv 2407.08454";
  registry.add_stage<KvmergerMerger, KvmergerParams>(
      StageKind::kMerge, "kvmerger", paper,
      "merges keys and values of a run of similar keys into its kept token, by a Gaussian kernel");
  registry.add_preset({"kvmerger", "score=snapkv select=head(recent=32,sinks=4) merge=kvmerger",
                       paper,
                       "KVMerger over SnapKV: runs of similar keys merge into their kept token"});
}

}  // namespace precis
