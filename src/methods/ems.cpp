// EMS: Li, Li, Meng, Ma, Geng, Xia, Wang, "EMS: Adaptive Evict-then-Merge Strategy for Head-wise KV
// Cache Compression Based on Global-Local Importance", arXiv 2412.08521: tokens are scored by
// attention of all queries and of the last ones together; of those that are not kept, irrelevant
// ones are evicted, and the others merge into the kept ones, their class centres, unless they are
// too different from all of them, which is the zero class.
//
// The paper's formulas could not be read. What is known of them from its reviews (ICLR 2025) and
// from a comparison in kvpress is: the two scores are made equal in their means; the redundancy of
// two tokens is the product of the cosines of their keys and of their values; merging is weighed by
// attention; and keys are normalised, with their norms apart. Hence here:
//
//   score=ems  (1 - local) * g_j / mean(g) + local * l_j / mean(l), g the attention of all queries
//              and l that of the last `window`, summed
//   merge=ems  evicted tokens go to the kept token with the most similar key. With a the attention
//              of the last `window` queries and the members i of an entry,
//                v <- sum a_i v_i / sum a_i
//                k <- (sum a_i |k_i| / sum a_i) u,   u the direction of sum a_i k_i / |k_i|
//
// There is no bias.
//
// Cost: as h2o for the score (see h2o.cpp), and every evicted key is compared with every kept one:
// quadratic in the prompt.
//
// Deviation: how the two scores are put together is an assumption.
// Deviation: irrelevant are the evicted tokens with the least attention that together have at most
//   the share `irrelevant` of the head's; the paper's rule and value are not known.
// Deviation: a token is of the zero class if one of the two cosines is not positive or their
// product
//   is below `threshold`; the paper's value is not known. A product of two negative ones, which a
//   reviewer pointed out, does not count as redundant.
// Deviation: the class is chosen by the keys alone.
// Deviation: an entry of which no member has attention weighs all alike.
// Deviation: all heads have the same budget. The paper divides it by how sparse and redundant heads
//   are.
// Deviation: the first 4 tokens do not receive.
// Deviation: cap, off by default, leaves out the least attended arrivals of a kept token.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "compress/method.h"
#include "kernels/rows.h"
#include "methods/attention_rows.h"
#include "methods/nearest_key.h"
#include "methods/value_fold.h"

namespace precis {

void register_ems(Registry& registry);

namespace {

struct EmsScoreParams {
  double local = 0.5;
  int window = 32;

  template <class V>
  void fields(V&& v) {
    v("local", local, 0, 1, "share of the last queries' attention in the score");
    v("window", window, 1, 4096, "last queries whose attention is the local one");
  }
};

struct EmsMergeParams : CapParams {
  double threshold = 0.3;
  double irrelevant = 0.01;
  int window = 32;
  int sinks = 4;

  template <class V>
  void fields(V&& v) {
    v("threshold", threshold, 0, 1, "least product of the cosines of keys and values that merge");
    v("irrelevant", irrelevant, 0, 1, "share of attention that evicted tokens lose unmerged");
    v("window", window, 1, 4096, "last queries whose attention weighs the merge");
    v("sinks", sinks, 0, 1 << 20, "first tokens, which never receive");
    CapParams::fields(v);
  }
};

double sum_of(std::span<const float> values) {
  double sum = 0;
  for (const float x : values) sum += static_cast<double>(x);
  return sum;
}

class EmsScorer final : public Scorer {
 public:
  explicit EmsScorer(const EmsScoreParams& params) : params_(params) {}

  std::size_t queries_needed(std::size_t n_tokens) const override { return n_tokens; }

  void score(HeadView& head, std::span<float> scores) const override {
    std::vector<double> sums(head.n_tokens, 0.0);
    const auto add = [&](std::size_t window, double share) {
      const std::span<const float> mass = head.window_mass(window);
      const double total = sum_of(mass);
      if (!(total > 0)) return;
      const double scale = share * static_cast<double>(head.n_tokens) / total;
      for (std::size_t t = 0; t < sums.size(); ++t) sums[t] += scale * static_cast<double>(mass[t]);
    };
    add(head.n_tokens, 1 - params_.local);
    add(static_cast<std::size_t>(params_.window), params_.local);
    for (std::size_t t = 0; t < sums.size(); ++t) scores[t] = static_cast<float>(sums[t]);
  }

 private:
  EmsScoreParams params_;
};

class EmsMerger final : public Merger {
 public:
  explicit EmsMerger(const EmsMergeParams& params) : params_(params) {}

  std::size_t queries_needed(std::size_t n_tokens) const override {
    return std::min(static_cast<std::size_t>(params_.window), n_tokens);
  }

  HeadMerge merge(HeadView& head, const HeadPlan& plan) const override {
    const std::span<const float> mass = head.window_mass(static_cast<std::size_t>(params_.window));
    const NearestKeys nearest = nearest_keys(head, plan, static_cast<std::size_t>(params_.sinks));
    const std::vector<std::uint8_t> irrelevant = find_irrelevant(nearest.tokens, mass);
    std::vector<Arrival> arrivals;
    for (std::size_t k = 0; k < nearest.tokens.size(); ++k) {
      const std::uint32_t slot = nearest.slots[k];
      if (irrelevant[k] != 0 || slot == NearestKeys::kNone) continue;
      if (redundant(head, nearest.tokens[k], plan.kept[slot], nearest.cosines[k]))
        arrivals.push_back({nearest.tokens[k], slot, mass[nearest.tokens[k]]});
    }
    cap_arrivals(arrivals, plan.kept.size(), params_.cap);
    std::vector<float> own;
    for (const std::uint32_t token : plan.kept) own.push_back(mass[token]);
    std::vector<float> largest = own;
    for (const Arrival& arrival : arrivals)
      largest[arrival.slot] = std::max(largest[arrival.slot], arrival.weight);
    for (std::size_t i = 0; i < own.size(); ++i)
      if (!(largest[i] > 0.0f)) own[i] = 1.0f;
    for (Arrival& arrival : arrivals)
      if (!(largest[arrival.slot] > 0.0f)) arrival.weight = 1.0f;
    const Fold fold = make_fold(std::move(own), std::move(arrivals));
    HeadMerge out = fold_values(head, plan, fold);
    merge_keys(head, plan, fold, out);
    return out;
  }

 private:
  // Whether each of the evicted tokens is irrelevant.
  std::vector<std::uint8_t> find_irrelevant(const std::vector<std::uint32_t>& tokens,
                                            std::span<const float> mass) const {
    std::vector<std::size_t> order(tokens.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return mass[tokens[a]] < mass[tokens[b]];
    });
    const double most = params_.irrelevant * sum_of(mass);
    std::vector<std::uint8_t> irrelevant(tokens.size(), 0);
    double sum = 0;
    for (const std::size_t k : order) {
      sum += static_cast<double>(mass[tokens[k]]);
      if (!(sum <= most) || params_.irrelevant == 0) break;
      irrelevant[k] = 1;
    }
    return irrelevant;
  }

  bool redundant(const HeadView& head, std::size_t token, std::size_t target,
                 float key_cosine) const {
    const std::size_t width = head.head_dim;
    const Half* values = head.entries.values;
    const float value_cosine = row_cosine(values + token * width, values + target * width, width);
    if (!(key_cosine > 0.0f) || !(value_cosine > 0.0f)) return false;
    return static_cast<double>(key_cosine * value_cosine) >= params_.threshold;
  }

  static void merge_keys(const HeadView& head, const HeadPlan& plan, const Fold& fold,
                         HeadMerge& out) {
    const std::size_t width = head.head_dim;
    out.keys.assign(plan.kept.size() * width, 0.0f);
    out.keys_changed = out.changed;
    std::vector<double> norms(plan.kept.size(), 0.0);
    std::vector<float> key(width);
    const auto add = [&](std::size_t token, std::size_t slot, float weight) {
      float norm = 0;
      row_norms(head.entries.keys + token * width, 1, width, &norm);
      if (!(norm > 0.0f)) return;
      const float share = weight / fold.total[slot];
      norms[slot] += static_cast<double>(share) * static_cast<double>(norm);
      convert_rows(head.entries.keys + token * width, key.data(), width);
      for (std::size_t c = 0; c < width; ++c) out.keys[slot * width + c] += share * (key[c] / norm);
    };
    for (std::size_t i = 0; i < plan.kept.size(); ++i)
      if (out.changed[i] != 0) add(plan.kept[i], i, fold.own[i]);
    for (const Arrival& arrival : fold.arrivals)
      if (out.changed[arrival.slot] != 0) add(arrival.token, arrival.slot, arrival.weight);
    for (std::size_t i = 0; i < plan.kept.size(); ++i) {
      float* row = out.keys.data() + i * width;
      double squares = 0;
      for (std::size_t c = 0; c < width; ++c)
        squares += static_cast<double>(row[c]) * static_cast<double>(row[c]);
      const double scale = squares > 0 ? norms[i] / std::sqrt(squares) : 0.0;
      for (std::size_t c = 0; c < width; ++c)
        row[c] = std::clamp(static_cast<float>(scale * static_cast<double>(row[c])), -kLargestHalf,
                            kLargestHalf);
    }
  }

  EmsMergeParams params_;
};

}  // namespace

void register_ems(Registry& registry) {
  const std::string paper = "arXiv 2412.08521";
  registry.add_stage<EmsScorer, EmsScoreParams>(
      StageKind::kScore, "ems", paper, "attention of all queries and of the last ones, in balance");
  registry.add_stage<EmsMerger, EmsMergeParams>(
      StageKind::kMerge, "ems", paper,
      "merges keys and values by attention into the most similar kept token, or into none");
  registry.add_preset({"ems", "score=ems select=head(recent=32,sinks=4) merge=ems", paper,
                       "EMS as far as it is known: balanced scores, redundant tokens merge"});
}

}  // namespace precis
