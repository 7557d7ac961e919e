// CriticalKV: Feng, Lv, Cao, Xie, Zhou, "Identify Critical KV Cache in LLM Inference from an Output
// Perturbation Perspective", arXiv 2502.03805: entries are chosen in two stages. The first part of
// the budget goes to the best entries by any score, the rest to the best others by
//
//   (score + epsilon) * ||W_O v||_1
//
// which bounds what evicting them changes at the layer's output.
//
//   select=critical     within each head
//   select=criticalada  the heads of a layer first share its budget as in Ada-KV (select=adakv)
//
// As in kvpress the first stage takes floor(first * entries) of a head's entries, the protected
// tokens among them, and a KV head's norm is the mean over its query heads.
//
// Deviation: protected tokens are kept whatever the stages say. kvpress scores the window above the
//   rest, so that below twice the window a token with a huge norm could take its place.
// Deviation: the floor of select=criticalada is taken of the budget beside the protected tokens, as
//   for select=adakv.
// Deviation: the presets score with SnapKV at this project's defaults (window 32, kernel 7, max).
#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/error.h"
#include "compress/method.h"
#include "methods/pooled_tokens.h"

namespace precis {

void register_criticalkv(Registry& registry);

namespace {

struct CriticalParams : ProtectionParams {
  double first = 0.5;
  double epsilon = 1e-4;

  template <class V>
  void fields(V&& v) {
    ProtectionParams::fields(v);
    v("first", first, 0, 1, "part of the entries that are chosen by the score alone");
    v("epsilon", epsilon, 0, 1e6, "added to scores before they are weighted with the norm");
  }
};

struct CriticalAdaParams : CriticalParams {
  double alpha = 0.2;

  template <class V>
  void fields(V&& v) {
    CriticalParams::fields(v);
    v("alpha", alpha, 0, 1, "part of the mean budget that every head is sure of");
  }
};

std::size_t part_of(double part, std::size_t whole) {
  return static_cast<std::size_t>(std::floor(part * static_cast<double>(whole)));
}

// The plan of a head that keeps n_open entries beside the protected ones, at least `sure` of them
// by the score alone.
HeadPlan select_in_stages(const LayerTable& table, std::size_t head, std::size_t n_open,
                          std::size_t sure, const CriticalParams& params) {
  const std::size_t n = table.n_tokens;
  const std::size_t n_protected = table.protection.count(n);
  const float* scores = table.scores + head * n;
  const float* norms = table.output_norms + head * n;
  const std::size_t wanted = part_of(params.first, n_open + n_protected);
  const std::size_t n_first =
      std::clamp(wanted - std::min(wanted, n_protected), std::min(sure, n_open), n_open);

  const Tokens open = open_tokens(table);
  Tokens kept = open;
  keep_highest(kept, n_first, scores);
  Tokens rest;
  std::set_difference(open.begin(), open.end(), kept.begin(), kept.end(), std::back_inserter(rest));
  std::vector<double> weighted(n, 0.0);
  for (const std::uint32_t t : rest)
    weighted[t] = (static_cast<double>(scores[t]) + params.epsilon) * static_cast<double>(norms[t]);
  keep_highest(rest, n_open - n_first, weighted.data());
  kept.insert(kept.end(), rest.begin(), rest.end());
  std::sort(kept.begin(), kept.end());
  HeadPlan plan;
  plan.kept = with_protected(table, kept);
  plan.targets = plan.kept;
  return plan;
}

class CriticalSelector final : public Selector {
 public:
  explicit CriticalSelector(const CriticalParams& params) : params_(params) {}

  Protection protection() const override { return params_.protection(); }
  bool reads_output_norms() const override { return true; }

  std::vector<HeadPlan> select(const LayerTable& table) const override {
    PRECIS_CHECK(table.output_norms != nullptr, "layer ", table.layer);
    std::vector<HeadPlan> plans;
    for (std::size_t h = 0; h < table.n_kv_heads; ++h)
      plans.push_back(select_in_stages(table, h, open_entries(table), 0, params_));
    return plans;
  }

 private:
  CriticalParams params_;
};

class CriticalAdaSelector final : public Selector {
 public:
  explicit CriticalAdaSelector(const CriticalAdaParams& params) : params_(params) {}

  Protection protection() const override { return params_.protection(); }
  bool reads_output_norms() const override { return true; }

  std::vector<HeadPlan> select(const LayerTable& table) const override {
    PRECIS_CHECK(table.output_norms != nullptr, "layer ", table.layer);
    const std::size_t floor = part_of(params_.alpha, open_entries(table));
    const std::vector<Tokens> shares = pooled_tokens(table, floor);
    std::vector<HeadPlan> plans;
    for (std::size_t h = 0; h < table.n_kv_heads; ++h)
      plans.push_back(select_in_stages(table, h, shares[h].size(), floor, params_));
    return plans;
  }

 private:
  CriticalAdaParams params_;
};

}  // namespace

void register_criticalkv(Registry& registry) {
  const std::string paper = "arXiv 2502.03805";
  registry.add_stage<CriticalSelector, CriticalParams>(
      StageKind::kSelect, "critical", paper,
      "the best entries of each head, the later ones weighed by the norm of W_O v");
  registry.add_stage<CriticalAdaSelector, CriticalAdaParams>(
      StageKind::kSelect, "criticalada", paper, "as critical, with budgets of heads as in Ada-KV");
  registry.add_preset(
      {"criticalkv", "score=snapkv select=critical(recent=32,sinks=0)", paper,
       "CriticalKV over SnapKV: half of the entries by their effect on the output"});
  registry.add_preset({"criticaladakv", "score=snapkv select=criticalada(recent=32,sinks=0)", paper,
                       "CriticalKV over Ada-KV: heads of a layer share its budget"});
}

}  // namespace precis
