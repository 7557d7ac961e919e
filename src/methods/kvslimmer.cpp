// KVSlimmer: Liu, An, Yan, Du, Zhang, Liu, Zhong, "KVSlimmer: Theoretical Insights and Practical
// Optimizations for Asymmetric KV Merging", arXiv 2603.00907 (github.com/lianjunl13-sudo/KVSlimmer,
// on top of AsymKV, arXiv 2506.05410): neighbours in the cache merge in pairs. Their values are
// added up, and an entry counts as often as it holds tokens, so that it stands for their sum: here
// the mean of the values and the bias log(count). Their keys become
//
//   k <- (A k_1 + B k_2) / (A + B),   A = h_11 - h_12,   B = h_22 - h_12
//
// which is where the second-order change of the attention output o is least. With attention a, the
// derivatives of o by the two logits are
//
//   h_11 = |a_1 (1 - 2 a_1)| |v_1 - o|,   h_22 alike,   h_12 = a_1 a_2 |v_1 + v_2 - 2 o|
//
// A merged entry has h = (A^2 h_11 + B^2 h_22) / (A + B)^2, the sum of attention, and the mean of
// the values.
//
// The paper's text could not be read. The merge is that of the released code, the derivatives are
// worked out here: d^2 o / dz_1^2 = a_1 (1 - 2 a_1) (v_1 - o), d^2 o / dz_1 dz_2 = -a_1 a_2 (v_1 +
// v_2 - 2 o), with z the logits; -h_12 is the second one's length.
//
// Cost: linear in the prompt, beside the attention of the last `window` queries.
//
// Deviation: the budget is met by choosing what is kept: an evicted token merges into the entry
//   before it, from left to right, if that one may receive, and is dropped otherwise. The code
//   merges the pairs with the least attention, weighed by age and count, until the budget is met.
// Deviation: a is the attention of the last `window` queries, in shares of their sum, and o its
//   output, both once per condensing, as in the code; the paper has them per query.
// Deviation: lengths are L2 norms. The code has L1 norms in h, and a_1 a_2 (|v_1 - o|_1 + |v_2 -
//   o|_1) in place of h_12.
// Deviation: A and B are at least 0, so that merged keys lie between the two; where both are 0 the
//   keys are weighed by their counts. The code divides by A + B + 1e-21.
// Deviation: counts are not limited. In the code they are at most 5 while values go on adding up;
//   cap=4 limits both.
// Deviation: the first 4 tokens do not receive; in the code 32.
// Deviation: the preset scores with SnapKV at this project's defaults.
// Deviation: cap, off by default, leaves out the last arrivals of a kept token.
#include <algorithm>
#include <cmath>

#include "compress/method.h"
#include "kernels/rows.h"
#include "methods/value_fold.h"

namespace precis {

void register_kvslimmer(Registry& registry);

namespace {

struct SlimmerParams : CapParams {
  int window = 32;
  int sinks = 4;

  template <class V>
  void fields(V&& v) {
    v("window", window, 1, 4096, "last queries whose attention weighs the keys");
    v("sinks", sinks, 0, 1 << 20, "first tokens, which never receive");
    CapParams::fields(v);
  }
};

using Row = std::vector<double>;

// One entry while tokens merge into it.
struct Entry {
  Row key;
  Row value;
  double attention = 0;
  double curvature = 0;  // h
  double count = 1;
};

class SlimmerMerger final : public Merger {
 public:
  explicit SlimmerMerger(const SlimmerParams& params) : params_(params) {}

  std::size_t queries_needed(std::size_t n_tokens) const override {
    return std::min(static_cast<std::size_t>(params_.window), n_tokens);
  }

  HeadMerge merge(HeadView& head, const HeadPlan& plan) const override {
    std::vector<std::uint8_t> receives(plan.kept.size(), 0);
    for (std::size_t i = 0, k = 0; i < plan.kept.size() && k < plan.targets.size(); ++i) {
      if (plan.kept[i] != plan.targets[k]) continue;
      receives[i] = plan.kept[i] >= static_cast<std::uint32_t>(params_.sinks) ? 1 : 0;
      ++k;
    }
    std::vector<Arrival> arrivals;
    visit_evicted(head.n_tokens, plan, [&](std::uint32_t token, std::size_t next) {
      if (next > 0 && receives[next - 1] != 0)
        arrivals.push_back({token, static_cast<std::uint32_t>(next - 1), 1.0f});
    });
    cap_arrivals(arrivals, plan.kept.size(), params_.cap);
    const Fold fold = make_fold(std::vector<float>(plan.kept.size(), 1.0f), std::move(arrivals));
    HeadMerge out = fold_values(head, plan, fold);
    merge_keys(head, plan, fold.arrivals, out);
    for (std::size_t i = 0; i < plan.kept.size(); ++i)
      out.mass_ratio[i] = 1.0f + static_cast<float>(out.n_merged[i]);
    return out;
  }

 private:
  void merge_keys(HeadView& head, const HeadPlan& plan, const std::vector<Arrival>& arrivals,
                  HeadMerge& out) const {
    const std::span<const float> mass = head.window_mass(static_cast<std::size_t>(params_.window));
    double total = 0;
    for (const float a : mass) total += static_cast<double>(a);
    if (!(total > 0)) total = 1;
    const Row output = mean_value(head, mass, total);
    out.keys.assign(plan.kept.size() * head.head_dim, 0.0f);
    out.keys_changed = out.changed;
    Entry entry;
    for (std::size_t k = 0; k < arrivals.size(); ++k) {
      const std::size_t slot = arrivals[k].slot;
      if (k % 64 == 0) throw_if_cancelled(head.cancel);
      if (k == 0 || arrivals[k - 1].slot != slot)
        entry = make_entry(head, plan.kept[slot], mass, total, output);
      add(entry, make_entry(head, arrivals[k].token, mass, total, output), output);
      if (k + 1 < arrivals.size() && arrivals[k + 1].slot == slot) continue;
      for (std::size_t c = 0; c < head.head_dim; ++c)
        out.keys[slot * head.head_dim + c] =
            std::clamp(static_cast<float>(entry.key[c]), -kLargestHalf, kLargestHalf);
    }
  }

  static Row row_of(const Half* row, std::size_t width) {
    Row out(width);
    for (std::size_t c = 0; c < width; ++c) out[c] = static_cast<double>(to_float(row[c]));
    return out;
  }

  static Row mean_value(const HeadView& head, std::span<const float> mass, double total) {
    Row out(head.head_dim, 0.0);
    std::vector<float> value(head.head_dim);
    for (std::size_t t = 0; t < head.n_tokens; ++t) {
      convert_rows(head.entries.values + t * head.head_dim, value.data(), head.head_dim);
      const double share = static_cast<double>(mass[t]) / total;
      for (std::size_t c = 0; c < value.size(); ++c)
        out[c] += share * static_cast<double>(value[c]);
    }
    return out;
  }

  static Entry make_entry(const HeadView& head, std::size_t token, std::span<const float> mass,
                          double total, const Row& output) {
    Entry entry;
    entry.key = row_of(head.entries.keys + token * head.head_dim, head.head_dim);
    entry.value = row_of(head.entries.values + token * head.head_dim, head.head_dim);
    entry.attention = static_cast<double>(mass[token]) / total;
    double sum = 0;
    for (std::size_t c = 0; c < output.size(); ++c)
      sum += (entry.value[c] - output[c]) * (entry.value[c] - output[c]);
    entry.curvature = std::abs(entry.attention * (1 - 2 * entry.attention)) * std::sqrt(sum);
    return entry;
  }

  static void add(Entry& left, const Entry& right, const Row& output) {
    double sum = 0;
    for (std::size_t c = 0; c < output.size(); ++c) {
      const double apart = left.value[c] + right.value[c] - 2 * output[c];
      sum += apart * apart;
    }
    const double mixed = left.attention * right.attention * std::sqrt(sum);
    double a = std::max(left.curvature - mixed, 0.0);
    double b = std::max(right.curvature - mixed, 0.0);
    if (!(a + b > 0)) {
      a = left.count;
      b = right.count;
    }
    const double total = a + b;
    a /= total;
    b /= total;
    const double count = left.count + right.count;
    for (std::size_t c = 0; c < output.size(); ++c) {
      left.key[c] = a * left.key[c] + b * right.key[c];
      left.value[c] = (left.count * left.value[c] + right.count * right.value[c]) / count;
    }
    left.curvature = a * a * left.curvature + b * b * right.curvature;
    left.attention += right.attention;
    left.count = count;
  }

  SlimmerParams params_;
};

}  // namespace

void register_kvslimmer(Registry& registry) {
  const std::string paper = "arXiv 2603.00907";
  registry.add_stage<SlimmerMerger, SlimmerParams>(
      StageKind::kMerge, "kvslimmer", paper,
      "merges evicted tokens into the kept one before them, keys by how much they bend the output");
  registry.add_preset({"kvslimmer",
                       "score=snapkv select=head(recent=32,sinks=4) merge=kvslimmer "
                       "bias=ratio(alpha=1,mode=count)",
                       paper, "KVSlimmer over SnapKV: neighbours merge, keys by curvature"});
}

}  // namespace precis
