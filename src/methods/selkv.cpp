// SelKV: Bouyahiaoui, Kara Laouar, Boutorh, Ameur, arXiv 2607.16213 v1 (July 2026). No code is
// public. What the paper leaves open follows the independent port in T0nyN1/kv-cache-merging-limits
// (baselines/selkv.py).
//
//   Eq. 1 importance    score=selkv  window attention times value norm, average-pooled
//   Eq. 2 selection     select=shared (GQA) or select=head, both in top_entries.cpp
//   Eq. 3 routing       merge=selkv  argmax of the evicted token's own attention row in its block
//   Eq. 4 gate          merge=selkv  max(cos(v_j, v_i), 0)
//   Eq. 5 merge         merge=selkv  values only; keys stay
//   Eq. 6 compensation  bias=ratio   alpha log R, per head, averaged over the layer's KV heads, or
//                                    over all layers (the paper's cheap mode); mode=count is
//                                    alpha log(1 + M), which the paper shows to be unstable
//   Eq. 7 re-positioning positions=compact, in positions.cpp; off by default, as in the paper
//
// Deviation: attention is summed over the query heads of a KV head (Eq. 1, 3, 5, 6). The paper's
//   GQA reduction is not stated; a mean would differ by a factor that cancels everywhere but in the
//   floor of a_i.
// Deviation: the product of attention and norm is pooled, with zeros outside of the prompt that
//   count in the divisor. The paper does not say what is pooled or how it is padded.
// Deviation: an evicted token without a target in its block is dropped. The paper does not say;
//   sending it to the best target of the whole prompt lowered quality in replication.
// Deviation: in shared mode a kept token outside of S_h receives nothing in head h: R = 1 there.
// Deviation: for R, a_i is floored at 1e-8 in the denominator and the numerator, so that
//   R = 1 + routed / max(a_i, floor) >= 1; the paper's R is singular for a_i = 0. Floored targets
//   are counted. Eq. 5 uses a_i itself.
// Deviation: cap, off by default, is this project's.
// Deviation: M counts the tokens whose gate let something through. With the default alpha 0.5 the
//   bias of mode=count is half of the paper's baseline, which is alpha=1.
// Deviation: mode=global averages over the KV heads of all layers that keep the token, not over
//   those that do not. The paper only says that R is shared by the layers.
// Deviation: sums run in order of the token, so that results do not depend on threads.
#include "methods/selkv.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "compress/method.h"
#include "kernels/rows.h"
#include "methods/pooling.h"
#include "methods/value_fold.h"

namespace precis {

void register_selkv(Registry& registry);

namespace {

constexpr float kMassFloor = 1e-8f;

struct ScoreParams {
  int window = 32;
  int pool = 5;

  template <class V>
  void fields(V&& v) {
    v("window", window, 1, 4096, "last queries whose attention is observed");
    v("pool", pool, 1, 255, "width of the average pooling, odd");
  }
};

struct MergeParams : CapParams {
  int block = 32;
  int window = 32;
  std::string gate = "cos";

  template <class V>
  void fields(V&& v) {
    v("block", block, 1, 1024, "positions per block; tokens merge inside of their block only");
    v("window", window, 1, 4096, "last queries whose attention weighs the merge");
    v("gate", gate, {"cos", "one", "zero"}, "share of an evicted value that is merged");
    CapParams::fields(v);
  }
};

struct BiasParams {
  double alpha = 0.5;
  std::string mode = "layer";

  template <class V>
  void fields(V&& v) {
    v("alpha", alpha, 0, 4, "damping of the bias alpha * log R; 0: none");
    v("mode", mode, {"head", "layer", "global", "count"},
      "R of the head itself, the mean over the layer's or over all KV heads, or 1 + merged tokens");
  }
};

SelkvGate gate_named(const std::string& name) {
  if (name == "one") return SelkvGate::kOne;
  return name == "zero" ? SelkvGate::kZero : SelkvGate::kCosine;
}

class SelkvScorer final : public Scorer {
 public:
  explicit SelkvScorer(const ScoreParams& params) : params_(params) {
    check_pool_width(params.pool);
  }

  std::size_t queries_needed(std::size_t n_tokens) const override {
    return std::min(static_cast<std::size_t>(params_.window), n_tokens);
  }

  void score(HeadView& head, std::span<float> scores) const override {
    const std::span<const float> mass = head.window_mass(static_cast<std::size_t>(params_.window));
    const std::span<const float> norms = head.value_norms();
    std::vector<float> product(head.n_tokens);
    for (std::size_t j = 0; j < product.size(); ++j) product[j] = mass[j] * norms[j];
    average_pool(product, params_.pool, scores);
  }

 private:
  ScoreParams params_;
};

// Eq. 3: of the targets that precede the token in its block, the one with the largest probability
// in the token's own row, summed over the group; the earlier one of equals. log_attention is the
// token's row of HeadView::block_attention, targets hold places in the block.
std::size_t most_attended(const float* log_attention, std::span<const std::uint32_t> targets) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < targets.size(); ++i)
    if (log_attention[targets[i]] > log_attention[targets[best]]) best = i;
  return best;
}

// Eq. 4. A zero value has no direction: gate 0.
float cosine_gate(HeadView& head, std::size_t token, std::size_t target) {
  const std::span<const float> norms = head.value_norms();
  const std::size_t width = head.head_dim;
  const float product =
      dot(head.entries.values + token * width, head.entries.values + target * width, width);
  const float cosine = product / (norms[token] * norms[target]);
  return cosine > 0.0f ? std::min(cosine, 1.0f) : 0.0f;  // NaN, from a zero norm, is not above 0
}

class SelkvMerger final : public Merger {
 public:
  explicit SelkvMerger(const MergeParams& params)
      : params_(params), gate_(gate_named(params.gate)) {}

  std::size_t queries_needed(std::size_t n_tokens) const override {
    return std::min(static_cast<std::size_t>(params_.window), n_tokens);
  }

  // Routing reads every token's own row.
  std::size_t attention_block() const override { return static_cast<std::size_t>(params_.block); }

  HeadMerge merge(HeadView& head, const HeadPlan& plan) const override {
    const std::span<const float> mass = head.window_mass(static_cast<std::size_t>(params_.window));
    const SelkvRoutes routes =
        route_evicted(head, plan, static_cast<std::size_t>(params_.block), gate_);
    std::vector<Arrival> arrivals;  // weighed by gamma_j a_j
    for (std::size_t k = 0; k < routes.tokens.size(); ++k)
      if (routes.slots[k] != SelkvRoutes::kDropped)
        arrivals.push_back(
            {routes.tokens[k], routes.slots[k], routes.gates[k] * mass[routes.tokens[k]]});
    cap_arrivals(arrivals, plan.kept.size(), params_.cap);
    std::vector<float> own;
    for (const std::uint32_t token : plan.kept) own.push_back(mass[token]);
    const Fold fold = make_fold(std::move(own), std::move(arrivals));
    HeadMerge out = fold_values(head, plan, fold);
    for (std::size_t i = 0; i < plan.kept.size(); ++i) {
      if (out.changed[i] == 0) continue;  // nothing arrived: R is 1
      if (fold.own[i] < kMassFloor) ++out.n_floored;
      out.mass_ratio[i] = 1.0f + fold.arrived[i] / std::max(fold.own[i], kMassFloor);
    }
    return out;
  }

 private:
  MergeParams params_;
  SelkvGate gate_;
};

// The mean of R over all heads of `layers` that keep a token, by token.
std::vector<double> mean_ratios(std::span<const LayerEntries> layers) {
  std::vector<double> sums;
  std::vector<std::uint32_t> counts;
  for (const LayerEntries& heads : layers)
    for (const HeadEntries& head : heads)
      for (std::size_t i = 0; i < head.tokens.size(); ++i) {
        const std::size_t token = head.tokens[i];
        if (token >= sums.size()) {
          sums.resize(token + 1, 0.0);
          counts.resize(token + 1, 0);
        }
        sums[token] += static_cast<double>(head.mass_ratio[i]);
        ++counts[token];
      }
  for (std::size_t t = 0; t < sums.size(); ++t)
    if (counts[t] > 0) sums[t] /= counts[t];
  return sums;
}

// Eq. 6.
class RatioCompensator final : public Compensator {
 public:
  explicit RatioCompensator(const BiasParams& params) : params_(params) {}

  bool uses_bias() const override { return params_.alpha != 0.0; }
  bool needs_all_layers() const override { return params_.mode == "global"; }

  std::vector<std::vector<std::vector<float>>> compensate(
      std::span<const LayerEntries> layers) const override {
    std::vector<std::vector<std::vector<float>>> biases;
    const std::vector<double> all = needs_all_layers() ? mean_ratios(layers) : Ratios{};
    for (const LayerEntries& layer : layers) {
      const std::vector<double> own = params_.mode == "layer" ? mean_ratios({&layer, 1}) : Ratios{};
      biases.emplace_back();
      for (const HeadEntries& head : layer) biases.back().push_back(of_head(head, own, all));
    }
    return biases;
  }

 private:
  using Ratios = std::vector<double>;

  std::vector<float> of_head(const HeadEntries& head, const Ratios& layer,
                             const Ratios& all) const {
    std::vector<float> out;
    for (std::size_t i = 0; i < head.tokens.size(); ++i) {
      double ratio = static_cast<double>(head.mass_ratio[i]);
      if (params_.mode == "layer") ratio = layer[head.tokens[i]];
      if (params_.mode == "global") ratio = all[head.tokens[i]];
      if (params_.mode == "count") ratio = 1.0 + head.n_merged[i];
      out.push_back(static_cast<float>(params_.alpha * std::log(ratio)));
    }
    return out;
  }

  BiasParams params_;
};

}  // namespace

SelkvRoutes route_evicted(HeadView& head, const HeadPlan& plan, std::size_t block, SelkvGate gate) {
  SelkvRoutes routes;
  const std::size_t n_evicted = head.n_tokens - plan.kept.size();
  routes.tokens.reserve(n_evicted);
  routes.slots.reserve(n_evicted);
  routes.gates.reserve(n_evicted);
  const std::span<const float> log_attention = head.block_attention(block);
  const std::size_t width = std::min(block, head.n_tokens);
  std::vector<std::uint32_t> places;  // of the block's targets so far
  std::vector<std::uint32_t> slots;   // theirs among plan.kept
  std::size_t slot = 0;               // next of plan.kept
  std::size_t target = 0;             // next of plan.targets
  // In order of position, so the candidates of a token are always the earlier ones (causal).
  for (std::size_t token = 0; token < head.n_tokens; ++token) {
    if (token % block == 0) {
      throw_if_cancelled(head.cancel);
      places.clear();
      slots.clear();
    }
    if (slot < plan.kept.size() && plan.kept[slot] == token) {
      if (target < plan.targets.size() && plan.targets[target] == token) {
        places.push_back(static_cast<std::uint32_t>(token % block));
        slots.push_back(static_cast<std::uint32_t>(slot));
        ++target;
      }
      ++slot;
      continue;
    }
    routes.tokens.push_back(static_cast<std::uint32_t>(token));
    if (places.empty()) {
      routes.slots.push_back(SelkvRoutes::kDropped);
      routes.gates.push_back(0.0f);
      continue;
    }
    const std::uint32_t chosen = slots[most_attended(log_attention.data() + token * width, places)];
    routes.slots.push_back(chosen);
    routes.gates.push_back(gate == SelkvGate::kCosine ? cosine_gate(head, token, plan.kept[chosen])
                                                      : (gate == SelkvGate::kOne ? 1.0f : 0.0f));
  }
  return routes;
}

void register_selkv(Registry& registry) {
  const std::string paper = "arXiv 2607.16213";
  registry.add_stage<SelkvScorer, ScoreParams>(
      StageKind::kScore, "selkv", paper + ", Eq. 1",
      "attention of the last queries times the value's norm");
  registry.add_stage<SelkvMerger, MergeParams>(
      StageKind::kMerge, "selkv", paper + ", Eq. 3-5",
      "merges evicted values into the kept token of the block that they attend to most");
  registry.add_stage<RatioCompensator, BiasParams>(
      StageKind::kBias, "ratio", paper + ", Eq. 6",
      "logit bias alpha * log of the attention that a merged entry now stands for");
  registry.add_preset({"selkv", "score=selkv select=shared merge=selkv bias=ratio", paper,
                       "SelKV with the paper's defaults for grouped queries"});
}

}  // namespace precis
