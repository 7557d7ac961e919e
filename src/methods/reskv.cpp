// ResKV: Zhan, Chen, Shang, "ResKV", arXiv 2607.29591 (July 2026). No code is public, and what
// follows was written from secondary descriptions of the paper.
//
//   budget b = m + r      the driver (compress/condenser_residual.cpp) asks the base method for m
//   Eq. 12 build          Lloyd's k-means over the keys of what is not kept, started from its
//                         highest-scored tokens: mean key, mean value (key_clusters.cpp)
//   Eq. 14 logit          q.k / sqrt(d) + log c: calibrate=count
//   Eq. 10-17 softmax     residual entries are rows of the one softmax (cache/kv_rows.h)
//   Eq. 18-19 validation  error of the attention output on queries that nothing was fitted to;
//                         r > 0 only where it falls by more than delta (held_out.cpp)
//   Eq. 20-22 gate        the residual's logits shift by log lambda(s), s the largest probability
//                         of the softmax over main entries and later tokens
//                         (kernels/sharpness_gate.h)
//
// Any base: residual=reskv goes behind every other stage; the preset `reskv` is SnapKV with it.
// Behind a merging base the residual holds what that base drops: tokens that changed a kept entry
// are left out, since their mass and values would count twice.
//
// Cost per head: |E| r span / n multiply-adds of head_dim for each of `steps` assignments and parts
// (|E| evicted tokens), and the attention of `queries` queries over the prompt, twice.
//
// Deviation: the formula of the gate, its statistic, delta, the candidates for r and the steps of
//   Lloyd's algorithm are not public; all are this project's. lambda is 1 up to low, falls along a
//   line to `least` at high. gate=choose also lets the validation choose it, with no gate among the
//   choices.
// Deviation: k-means runs within runs of `span` evicted tokens that follow each other (whole
//   prompts up to that many), so that the cost stays linear in the prompt.
// Deviation: calibrate=mass, which is not the paper's: log of the attention that the members get
//   from the fit queries over the attention that the mean key gets. log c underestimates the mass
//   of a cluster whose logits differ (Jensen). At most exp(10) times the count.
// Deviation: scale, a factor of the mass of all residual entries; 1 is the paper's.
// Deviation: metric=query, which is not the paper's: distances of keys as the fit queries see them.
// Deviation: metric=random draws the clusters: what clustering is worth.
// Deviation: local=exact, not known to be the paper's: the queries of the window see its tokens
//   exactly, as queries to come will see what comes before them. Otherwise a residual section is
//   praised for restoring neighbours that are never missing in decode.
// Deviation: the validation window is a quarter of the prompt at most, and without 32 queries there
//   is no residual section.
// Deviation: the validation judges rows in f16, before they are quantised.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "compress/method.h"
#include "kernels/rows.h"
#include "methods/held_out.h"
#include "methods/value_fold.h"

namespace precis {

void register_reskv(Registry& registry);

namespace {

constexpr std::size_t kFewestQueries = 32;
// Largest distance of a bias from log c: beyond, what was fitted says more about the few queries
// than about the cluster.
constexpr double kMostCorrection = 10.0;

struct ResidualParams {
  std::vector<double> parts = {0.0625, 0.125, 0.25, 0.5};
  std::string calibrate = "count";
  double scale = 1.0;
  std::string metric = "euclid";
  int span = 1024;
  int steps = 4;
  std::string validate = "head";
  double delta = 0.05;
  int queries = 128;
  std::string local = "exact";
  std::string gate = "choose";
  double low = 0.2;
  double high = 0.8;
  double least = 0.1;

  template <class V>
  void fields(V&& v) {
    v("parts", parts, 0.001, 0.99, "parts of the budget that the residual section may take");
    v("calibrate", calibrate, {"count", "mass"},
      "bias of an entry: log of its members, or of their attention over its own");
    v("scale", scale, 0.001, 4, "factor of the mass of residual entries");
    v("metric", metric, {"euclid", "query", "random"},
      "distance of keys: plain, as the queries see it, or clusters are drawn at random");
    v("span", span, 16, 1 << 20, "evicted tokens that are clustered together");
    v("steps", steps, 1, 100, "assignments of Lloyd's algorithm");
    v("validate", validate, {"head", "layer", "off"},
      "who takes residual entries by held-out error: heads, whole layers, or all the first part");
    v("delta", delta, 0, 0.99, "part of the held-out error that residual entries must save");
    v("queries", queries, 32, 4096, "last queries to fit and to validate with, 3 to 1");
    v("local", local, {"exact", "kept"},
      "what these queries see of each other's tokens: all, as in a tail, or the kept ones");
    v("gate", gate, {"off", "linear", "choose"},
      "residual mass where attention is sharp: as it is, lowered, or what validates best");
    v("low", low, 0.001, 1, "largest probability up to which the gate is open");
    v("high", high, 0.001, 1, "largest probability from which on the gate is at its least");
    v("least", least, 0, 1, "factor of the residual mass there");
  }
};

std::vector<SharpnessGate> gates_of(const ResidualParams& params) {
  const auto low = static_cast<float>(params.low);
  const auto high = static_cast<float>(params.high);
  const auto least = static_cast<float>(params.least);
  const SharpnessGate given{low, high, least};
  if (params.gate == "off") return {{}};
  if (params.gate == "linear") return {given};
  return {{}, {low, high, (1 + least) / 2}, given};
}

class ReskvResidual final : public Residual {
 public:
  explicit ReskvResidual(const ResidualParams& params) : params_(params), gates_(gates_of(params)) {
    if (params.low > params.high)
      throw Error(ErrorCode::kInvalidArgument,
                  concat("low is ", params.low, " and high ", params.high,
                         ": the gate closes from low to high, so low must not be above it"));
    for (const double part : params.parts)
      if (part <= 0)
        throw Error(ErrorCode::kInvalidArgument,
                    "parts holds 0: no residual section is always tried; leave it out");
    if (params.validate == "off" && params.parts.size() > 1) params_.parts.resize(1);
  }

  std::size_t queries_needed(std::size_t n_tokens) const override {
    const std::size_t n = std::min(static_cast<std::size_t>(params_.queries), n_tokens / 4);
    return n < kFewestQueries ? 0 : n;
  }
  const std::vector<double>& parts() const override { return params_.parts; }

  std::vector<ResidualTrial> try_splits(HeadView& head,
                                        std::span<const HeadSplit> splits) const override {
    const std::size_t window = queries_needed(head.n_tokens);
    const QueryTokens dealt = deal_queries(head.n_tokens, window);
    const std::size_t horizon = params_.local == "exact" ? head.n_tokens - window : head.n_tokens;
    const QueryRows fit(head, dealt.fit, horizon);
    const HeldOutJudge judge(head, dealt.held, horizon);
    std::vector<float> mass;
    if (params_.calibrate == "mass") {
      mass = fit.mass(head);
      std::fill(mass.begin() + static_cast<std::ptrdiff_t>(horizon), mass.end(), 0.0f);
    }
    std::vector<float> factor;
    if (params_.metric == "query") factor = query_metric(head, fit.data(), fit.n_rows());
    std::vector<ResidualTrial> trials;
    for (const HeadSplit& split : splits) {
      const ResidualDraft draft = build(head, split, fit, mass, factor);
      const bool is_empty = draft.clusters.size() == 0;
      ResidualTrial trial = judge.judge(head, split, is_empty ? nullptr : &draft, gates_);
      trial.entries.keys = draft.keys;
      trial.entries.values = draft.values;
      trial.entries.bias = draft.bias;
      trials.push_back(std::move(trial));
    }
    return trials;
  }

  std::vector<std::size_t> choose(
      std::span<const std::vector<ResidualTrial>> trials,
      std::span<const std::vector<std::uint8_t>> usable) const override {
    std::vector<std::size_t> chosen(trials.size(), 0);
    if (params_.validate == "layer") return choose_together(trials, usable);
    for (std::size_t h = 0; h < trials.size(); ++h) {
      if (params_.validate == "off") {
        chosen[h] = trials[h].size() > 1 && usable[h][1] != 0 ? 1 : 0;
        continue;
      }
      double best = (1 - params_.delta) * trials[h][0].error;
      for (std::size_t s = 1; s < trials[h].size(); ++s)
        if (usable[h][s] != 0 && trials[h][s].error < best) {
          best = trials[h][s].error;
          chosen[h] = s;
        }
    }
    return chosen;
  }

 private:
  // All heads of a layer take the same split, by the sum of their errors; where it is not open to a
  // head, that one stays without.
  std::vector<std::size_t> choose_together(
      std::span<const std::vector<ResidualTrial>> trials,
      std::span<const std::vector<std::uint8_t>> usable) const {
    std::size_t best_split = 0;
    double best = 0;
    for (std::size_t s = 0; s < trials[0].size(); ++s) {
      double sum = 0;
      for (std::size_t h = 0; h < trials.size(); ++h)
        sum += trials[h][usable[h][s] != 0 ? s : 0].error;
      if (s == 0) sum *= 1 - params_.delta;
      if (s > 0 && !(sum < best)) continue;
      best = sum;
      best_split = s;
    }
    std::vector<std::size_t> chosen;
    for (std::size_t h = 0; h < trials.size(); ++h)
      chosen.push_back(usable[h][best_split] != 0 ? best_split : 0);
    return chosen;
  }

  ResidualDraft build(HeadView& head, const HeadSplit& split, const QueryRows& fit,
                      const std::vector<float>& mass, const std::vector<float>& factor) const {
    ResidualDraft draft;
    if (split.n_residual == 0) return draft;
    std::vector<std::uint32_t> evicted;
    visit_evicted(head.n_tokens, *split.plan, [&](std::uint32_t token, std::size_t) {
      if (split.merge == nullptr ||
          !std::binary_search(split.merge->absorbed.begin(), split.merge->absorbed.end(), token))
        evicted.push_back(token);
    });
    if (evicted.empty()) return draft;
    draft.clusters = cluster_keys(
        head, evicted, split.n_residual,
        {static_cast<std::size_t>(params_.span), static_cast<std::size_t>(params_.steps),
         factor.empty() ? nullptr : factor.data(), params_.metric == "random"});
    draft.keys = mean_rows(draft.clusters, head.entries.keys, head.head_dim);
    draft.values = mean_rows(draft.clusters, head.entries.values, head.head_dim);
    for (std::size_t j = 0; j < draft.clusters.size(); ++j)
      draft.bias.push_back(
          static_cast<float>(std::log(static_cast<double>(draft.clusters.members(j).size()))));
    if (!mass.empty()) correct_biases(head, fit, mass, draft);
    const auto shift = static_cast<float>(std::log(params_.scale));
    for (float& bias : draft.bias) bias += shift;
    return draft;
  }

  // log c + log(mass of the members / mass that the entry has with log c).
  static void correct_biases(HeadView& head, const QueryRows& fit, const std::vector<float>& mass,
                             ResidualDraft& draft) {
    const std::vector<float> own = fit.mass_of(head, draft);
    for (std::size_t j = 0; j < own.size(); ++j) {
      double members = 0;
      for (const std::uint32_t token : draft.clusters.members(j))
        members += static_cast<double>(mass[token]);
      // Where no fit query looks there is nothing to fit.
      constexpr double kNoMass = std::numeric_limits<float>::min();
      if (!(members > kNoMass) || !(static_cast<double>(own[j]) > kNoMass)) continue;
      const double correction = std::log(members / static_cast<double>(own[j]));
      draft.bias[j] +=
          static_cast<float>(std::clamp(correction, -kMostCorrection, kMostCorrection));
    }
  }

  ResidualParams params_;
  std::vector<SharpnessGate> gates_;
};

}  // namespace

void register_reskv(Registry& registry) {
  const std::string paper = "arXiv 2607.29591";
  registry.add_stage<ReskvResidual, ResidualParams>(
      StageKind::kResidual, "reskv", paper,
      "what is not kept as means of alike keys, where held-out queries gain by it");
  registry.add_preset({"reskv", "score=snapkv select=head(recent=32,sinks=0) residual=reskv", paper,
                       "ResKV over SnapKV: a part of the budget summarises what is not kept"});
  registry.add_preset({"reskv-mass",
                       "score=snapkv select=head(recent=32,sinks=0) "
                       "residual=reskv(calibrate=mass,metric=query)",
                       paper, "ResKV with what its queries measure: masses and distances"});
}

}  // namespace precis
