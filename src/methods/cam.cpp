// CaM: Zhang, Du, Luo, Zhong, Zhang, Liu, Ji, "CaM: Cache Merging for Memory-efficient LLMs
// Inference", ICML 2024 (openreview LCTmppB165; github.com/zyxxmu/cam): the value of an evicted
// token i is shared by the m kept tokens that follow it,
//
//   v_t <- v_t + v_i / m   with probability min(A_i / mean of their A, 1), else nothing
//
// where A is accumulated attention. Keys stay, and there is no bias.
//
// As a single merge after the prefill this is known to diverge (perplexity 77.7 against 4.42 in a
// replication): values add up, and a kept token may follow hundreds of evicted ones. It is here as
// a baseline. decode=step is its own cadence, one token at a time from the end of the prompt on;
// what is evicted of the prompt is then dropped.
//
// Cost: as h2o (see h2o.cpp), once for score and merge together.
//
// Deviation: A of the prompt is summed over all its queries, so a token that precedes others mostly
//   has more of it and merges for certain; decode=step goes on from there. The paper sums from the
//   first token that is decoded.
// Deviation: one shot, all evicted tokens; the mean is over as many kept tokens as follow, if they
//   are fewer than m, and so is the share. Without any the token is dropped.
// Deviation: draws are a hash of the head's seed and the token.
// Deviation: attention is summed over the query heads of a KV head.
// Deviation: sums are clamped to what f16 can hold.
#include <algorithm>

#include "compress/method.h"
#include "compress/step.h"
#include "kernels/rows.h"
#include "methods/attention_rows.h"
#include "methods/hashed_uniform.h"
#include "methods/value_fold.h"

namespace precis {

void register_cam(Registry& registry);

namespace {

struct CamParams : AccumulationParams {
  int share = 32;

  template <class V>
  void fields(V&& v) {
    v("share", share, 1, 1 << 20, "kept tokens that share an evicted value");
    AccumulationParams::fields(v);
  }
};

class CamMerger final : public Merger, public StepMerger {
 public:
  explicit CamMerger(const CamParams& params) : params_(params) {}

  std::size_t queries_needed(std::size_t n_tokens) const override {
    return params_.n_queries(n_tokens);
  }

  HeadMerge merge(HeadView& head, const HeadPlan& plan) const override {
    const std::span<const float> mass = head.window_mass(queries_needed(head.n_tokens));
    const std::size_t width = head.head_dim;
    const std::size_t n_kept = plan.kept.size();
    HeadMerge out;
    out.values.resize(n_kept * width);
    out.changed.assign(n_kept, 0);
    out.mass_ratio.assign(n_kept, 1.0f);
    out.n_merged.assign(n_kept, 0);
    for (std::size_t i = 0; i < n_kept; ++i)
      convert_rows(head.entries.values + plan.kept[i] * width, out.values.data() + i * width,
                   width);
    std::vector<float> value(width);
    visit_evicted(head.n_tokens, plan, [&](std::uint32_t token, std::size_t slot) {
      const std::size_t end = std::min(slot + static_cast<std::size_t>(params_.share), n_kept);
      if (slot == end) {
        ++out.n_dropped;
        return;
      }
      ++out.n_routed;
      double mean = 0;
      for (std::size_t i = slot; i < end; ++i)
        mean += static_cast<double>(mass[plan.kept[i]]) / static_cast<double>(end - slot);
      // A_i > u * mean: true with probability min(A_i / mean, 1), without dividing by 0.
      const auto draw = static_cast<double>(hashed_uniform(head.seed, token));
      if (static_cast<double>(mass[token]) <= draw * mean) return;
      out.absorbed.push_back(token);
      convert_rows(head.entries.values + token * width, value.data(), width);
      for (std::size_t i = slot; i < end; ++i) {
        out.changed[i] = 1;
        ++out.n_merged[i];
        float* sum = out.values.data() + i * width;
        for (std::size_t c = 0; c < width; ++c) sum[c] += value[c] / static_cast<float>(end - slot);
      }
    });
    for (float& x : out.values) x = std::clamp(x, -kLargestHalf, kLargestHalf);
    return out;
  }

  const StepMerger* step() const override { return this; }
  bool merges_prompt() const override { return false; }

  // A.
  std::size_t n_fields() const override { return 1; }

  void carry(HeadView& head, std::span<const std::uint32_t> kept,
             const StepFields& fields) const override {
    const std::span<const float> mass = head.window_mass(queries_needed(head.n_tokens));
    for (std::size_t i = 0; i < kept.size(); ++i) fields.row(0)[i] = mass[kept[i]];
  }

  void observe(const StepHead& head) const override { add_attention(head, head.fields.row(0)); }

  void merge(const StepHead& head, std::size_t slot) const override {
    const std::int32_t from = head.positions[slot];
    const std::int32_t to = last_of_next(head, from, static_cast<std::size_t>(params_.share));
    const auto takes = [&](std::size_t i) {
      return head.positions[i] > from && head.positions[i] <= to;
    };
    const float* mass = head.fields.row(0);
    double sum = 0;
    std::size_t n = 0;
    for (std::size_t i = 0; i < head.n; ++i)
      if (takes(i)) {
        sum += static_cast<double>(mass[i]);
        ++n;
      }
    if (n == 0) return;
    const auto draw =
        static_cast<double>(hashed_uniform(head.seed, static_cast<std::uint64_t>(from)));
    if (static_cast<double>(mass[slot]) <= draw * sum / static_cast<double>(n)) return;
    for (std::size_t i = 0; i < head.n; ++i)
      if (takes(i))
        mix_rows(head.values + slot * head.head_dim, 1.0f / static_cast<float>(n), 1.0f,
                 head.values + i * head.head_dim, head.head_dim);
  }

 private:
  // The position of the count-th entry behind `from`, or of the last one.
  static std::int32_t last_of_next(const StepHead& head, std::int32_t from, std::size_t count) {
    std::int32_t high = from;  // by halving: there is no order to walk along
    for (std::size_t i = 0; i < head.n; ++i) high = std::max(high, head.positions[i]);
    std::int32_t low = from;
    while (low < high) {
      const std::int32_t middle = low + (high - low) / 2;
      std::size_t n = 0;
      for (std::size_t i = 0; i < head.n; ++i)
        n += head.positions[i] > from && head.positions[i] <= middle ? 1 : 0;
      if (n >= count)
        high = middle;
      else
        low = middle + 1;
    }
    return high;
  }

  CamParams params_;
};

}  // namespace

void register_cam(Registry& registry) {
  const std::string paper = "CaM, ICML 2024";
  registry.add_stage<CamMerger, CamParams>(
      StageKind::kMerge, "cam", paper,
      "adds evicted values to the kept tokens that follow, at random by their attention");
  registry.add_preset({"cam", "score=h2o select=head(recent=32,sinks=4) merge=cam", paper,
                       "CaM in one shot over H2O, which is known to diverge: a baseline"});
}

}  // namespace precis
