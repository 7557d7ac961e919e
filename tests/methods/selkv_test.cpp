// SelKV's merging, routing and compensation: exact cases, conservation laws, neutral settings.
#include "methods/selkv.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "compress/layer_case.h"
#include "methods/registry.h"
#include "support/head_rows.h"

namespace precis {
namespace {

using test::fingerprint;
using test::LayerCase;
using test::make_layer;
using test::Pattern;

using Tokens = std::vector<std::uint32_t>;

// A selector that keeps given tokens in every head.
class FixedSelector final : public Selector {
 public:
  explicit FixedSelector(HeadPlan plan) : plan_(std::move(plan)) {}
  Protection protection() const override { return {}; }
  std::vector<HeadPlan> select(const LayerTable& table) const override {
    return std::vector<HeadPlan>(table.n_kv_heads, plan_);
  }

 private:
  HeadPlan plan_;
};

// Attention of the last `window` queries over a condensed layer, each seeing the entries up to
// itself.
std::vector<double> attend_condensed(const LayerCase& layer, const FrozenLayer& frozen,
                                     std::size_t head, std::size_t window) {
  const std::size_t n = layer.n_tokens;
  const std::size_t group = layer.shape.group;
  const std::size_t width = layer.shape.kv.head_dim;
  const std::vector<float> rows = test::query_rows(layer, head, n - window);
  std::vector<Visible> visible;
  for (std::size_t t = n - window; t < n; ++t) {
    std::uint32_t last = 0;
    while (last < frozen.n_entries(head) &&
           frozen.position(head, last) <= static_cast<std::int32_t>(t))
      ++last;
    visible.push_back({0, last});
  }
  const test::HeadRows held(frozen, head);
  const EntryView entries = held.view();
  const Visible* ranges = visible.data();
  std::vector<double> output(window * group * width);
  reference::attention({rows.data(), window, group, width, group * width}, &entries, 1,
                       layer.shape.rule, &ranges, output.data(), nullptr);
  return output;
}

// Largest difference of the window's outputs to those over the dense cache, in units of the
// largest.
double window_error(const LayerCase& layer, const FrozenLayer& frozen, std::size_t window) {
  const FrozenLayer dense = FrozenLayer::from_tail(layer.dense);
  double error = 0;
  double largest = 0;
  for (std::size_t h = 0; h < layer.shape.kv.n_kv_heads; ++h) {
    const std::vector<double> a = attend_condensed(layer, dense, h, window);
    const std::vector<double> b = attend_condensed(layer, frozen, h, window);
    for (std::size_t i = 0; i < a.size(); ++i) {
      error = std::max(error, std::abs(a[i] - b[i]));
      largest = std::max(largest, std::abs(a[i]));
    }
  }
  return error / largest;
}

constexpr std::size_t kWindow = 8;

// Tokens 2i and 2i + 1 have the same key, and query it; the last kWindow tokens are singles.
LayerCase pairs(std::uint32_t seed) {
  LayerCase layer = make_layer({{2, 32}, 2, {0.3f, 0.0f}}, 72, Pattern::kRandom, seed);
  for (std::size_t h = 0; h < 2; ++h)
    for (std::size_t t = 0; t + kWindow < 72; ++t) {
      const Half* key = layer.dense.key_row(h, t & ~std::size_t{1});
      std::copy(key, key + 32, layer.dense.key_row(h, t));
      for (std::size_t g = 0; g < 2; ++g)
        for (std::size_t c = 0; c < 32; ++c)
          layer.observed.queries[((h * 2 + g) * 72 + t) * 32 + c] = 3 * to_float(key[c]);
    }
  test::observe(layer);
  return layer;
}

HeadPlan keep_first_of_pairs() {
  HeadPlan plan;
  for (std::uint32_t t = 0; t < 72; ++t)
    if (t % 2 == 0 || t + kWindow >= 72) plan.kept.push_back(t);
  plan.targets = plan.kept;
  return plan;
}

FrozenLayer condense_with(const LayerCase& layer, const std::string& stages, const HeadPlan& plan,
                          CompressionReport* report = nullptr) {
  Method method = builtin_methods().parse("score=random select=head " + stages);
  method.selector = std::make_shared<FixedSelector>(plan);
  Condenser condenser(method, Budget::parse("95%"), {layer.shape}, layer.n_tokens, 1);
  SerialExecutor serial;
  FrozenLayer frozen = test::condense_only(condenser, layer.dense, layer.observed, serial);
  if (report != nullptr) *report = condenser.report();
  return frozen;
}

TEST(SelkvMerge, DuplicateKeysMergeWithoutLoss) {
  for (std::uint32_t seed = 1; seed <= 5; ++seed) {
    const LayerCase layer = pairs(seed);
    CompressionReport report;
    const std::string merge = concat("merge=selkv(gate=one,window=", kWindow, ")");
    const FrozenLayer merged = condense_with(layer, merge + " bias=ratio(alpha=1,mode=head)",
                                             keep_first_of_pairs(), &report);
    EXPECT_EQ(report.n_routed, 2 * 32u);
    EXPECT_EQ(report.n_dropped, 0u);
    EXPECT_EQ(report.n_floored, 0u);
    EXPECT_LT(window_error(layer, merged, kWindow), 1e-3);
    // Each part of it is needed.
    const FrozenLayer evicted = condense_with(layer, "", keep_first_of_pairs());
    const FrozenLayer uncompensated = condense_with(layer, merge, keep_first_of_pairs());
    EXPECT_GT(window_error(layer, evicted, kWindow), 0.05);
    EXPECT_GT(window_error(layer, uncompensated, kWindow), 0.05);
  }
}

TEST(SelkvMerge, EqualPairsPassTheCosineGate) {
  LayerCase layer = pairs(7);
  for (std::size_t h = 0; h < 2; ++h)
    for (std::size_t t = 1; t + kWindow < 72; t += 2) {
      const Half* value = layer.dense.value_row(h, t - 1);
      std::copy(value, value + 32, layer.dense.value_row(h, t));
    }
  // R is 2 for every pair in both heads, so the mean over the layer is the head's own.
  const FrozenLayer merged =
      condense_with(layer, concat("merge=selkv(window=", kWindow, ") bias=ratio(alpha=1)"),
                    keep_first_of_pairs());
  EXPECT_LT(window_error(layer, merged, kWindow), 1e-3);
  const test::HeadRows view(merged, 0);
  for (std::size_t i = 0; i < 32; ++i) EXPECT_NEAR(view.bias[i], std::log(2.0f), 1e-4f);
}

TEST(SelkvMerge, NeutralSettingsEqualEvictionBitForBit) {
  const LayerCase layer = make_layer({{3, 16}, 2, {0.25f, 0.0f}}, 150, Pattern::kRandom, 8);
  const auto run = [&](const std::string& spec) {
    Condenser condenser(builtin_methods().parse(spec), Budget::parse("30%"), {layer.shape}, 150, 1);
    SerialExecutor serial;
    return fingerprint(test::condense_only(condenser, layer.dense, layer.observed, serial));
  };
  const std::string evicted = run("selkv merge=none bias=none");
  EXPECT_EQ(run("selkv(gate=zero,alpha=0)"), evicted);
  EXPECT_EQ(run("selkv(gate=zero) bias=none"), evicted);
  EXPECT_NE(run("selkv(gate=cos,alpha=0)"), evicted);
  // A bias that may be needed is paid for, needed or not.
  EXPECT_NE(run("selkv(gate=zero,alpha=0.5)"), evicted);
  const HeadPlan plan = keep_first_of_pairs();
  const LayerCase small = pairs(9);
  EXPECT_EQ(fingerprint(condense_with(small, "merge=selkv(gate=zero) bias=ratio(alpha=0.5)", plan)),
            fingerprint(condense_with(small, "", plan)));
}

struct Merged {
  HeadPlan plan;
  SelkvRoutes routes;
  HeadMerge merge;
  std::vector<double> mass;
};

Merged merge_random(const LayerCase& layer, std::size_t head, const std::string& gate,
                    SelkvGate kind) {
  const Method method = builtin_methods().parse("selkv(gate=" + gate + ",block=16)");
  HeadView view = test::view_head(layer, head);
  Merged out;
  for (std::uint32_t t = 0; t < layer.n_tokens; t += 1 + (t * 7 + 3) % 5)
    out.plan.kept.push_back(t);
  for (std::size_t i = 0; i < out.plan.kept.size(); i += 1 + i % 2)
    out.plan.targets.push_back(out.plan.kept[i]);
  out.routes = route_evicted(view, out.plan, 16, kind);
  out.merge = method.merger->merge(view, out.plan);
  for (const float a : view.window_mass(32)) out.mass.push_back(static_cast<double>(a));
  return out;
}

TEST(SelkvMerge, MassIsConserved) {
  for (const Pattern pattern : {Pattern::kRandom, Pattern::kRepeated, Pattern::kZeros})
    for (const auto& [gate, kind] :
         {std::pair{"cos", SelkvGate::kCosine}, {"one", SelkvGate::kOne}}) {
      const LayerCase layer = make_layer({{2, 16}, 2, {0.25f, 0.0f}}, 200, pattern, 3);
      const Merged m = merge_random(layer, 1, gate, kind);
      double before = 0;
      double after = 0;
      for (std::size_t i = 0; i < m.plan.kept.size(); ++i) {
        EXPECT_GE(m.merge.mass_ratio[i], 1.0f);
        before += m.mass[m.plan.kept[i]];
        after += m.mass[m.plan.kept[i]] * static_cast<double>(m.merge.mass_ratio[i]);
      }
      double routed = 0;
      for (std::size_t k = 0; k < m.routes.tokens.size(); ++k)
        routed += static_cast<double>(m.routes.gates[k]) * m.mass[m.routes.tokens[k]];
      ASSERT_EQ(m.merge.n_floored, 0u);
      if (pattern != Pattern::kZeros || kind == SelkvGate::kOne) {
        EXPECT_GT(routed, 0.1);
      }
      EXPECT_NEAR(after, before + routed, 1e-4 * (before + routed));
      // With an open gate everything but the dropped mass is still there.
      if (kind != SelkvGate::kOne) continue;
      double dropped = 0;
      for (std::size_t k = 0; k < m.routes.tokens.size(); ++k)
        if (m.routes.slots[k] == SelkvRoutes::kDropped) dropped += m.mass[m.routes.tokens[k]];
      EXPECT_NEAR(after + dropped, 32 * 2, 1e-3);
    }
}

TEST(SelkvRoute, RoutesToTheMostAttendedEarlierTargetOfTheBlock) {
  const LayerCase layer = make_layer({{2, 16}, 3, {0.25f, 0.0f}}, 200, Pattern::kRandom, 4);
  const Merged m = merge_random(layer, 0, "cos", SelkvGate::kCosine);
  HeadView head = test::view_head(layer, 0);
  std::size_t n_routed = 0;
  std::size_t k = 0;
  for (std::uint32_t j = 0; j < 200; ++j) {
    if (std::binary_search(m.plan.kept.begin(), m.plan.kept.end(), j)) continue;
    ASSERT_EQ(m.routes.tokens[k], j);
    double best = -1;
    std::uint32_t choice = SelkvRoutes::kDropped;
    for (const std::uint32_t i : m.plan.targets) {
      if (i / 16 != j / 16 || i > j) continue;
      double probability = 0;
      for (std::size_t g = 0; g < 3; ++g) {
        double logit = 0;
        for (std::size_t c = 0; c < 16; ++c)
          logit += static_cast<double>(head.query(g, j)[c]) *
                   static_cast<double>(to_float(head.entries.keys[i * 16 + c]));
        probability += std::exp(0.25 * logit - static_cast<double>(head.query_log_sum_exp(g, j)));
      }
      if (probability > best) {
        best = probability;
        choice = i;
      }
    }
    if (choice == SelkvRoutes::kDropped) {
      EXPECT_EQ(m.routes.slots[k], SelkvRoutes::kDropped);
      EXPECT_EQ(m.routes.gates[k], 0.0f);
    } else {
      ++n_routed;
      ASSERT_NE(m.routes.slots[k], SelkvRoutes::kDropped);
      EXPECT_EQ(m.plan.kept[m.routes.slots[k]], choice) << j;
      double product = 0;
      for (std::size_t c = 0; c < 16; ++c)
        product += static_cast<double>(to_float(head.entries.values[j * 16 + c])) *
                   static_cast<double>(to_float(head.entries.values[choice * 16 + c]));
      const std::span<const float> norms = head.value_norms();
      const double cosine = product / static_cast<double>(norms[j] * norms[choice]);
      EXPECT_NEAR(static_cast<double>(m.routes.gates[k]), std::max(cosine, 0.0), 1e-5);
    }
    ++k;
  }
  EXPECT_EQ(k, m.routes.tokens.size());
  EXPECT_EQ(m.merge.n_routed, n_routed);
  EXPECT_EQ(m.merge.n_dropped, k - n_routed);
  EXPECT_GT(n_routed, 50u);
  EXPECT_LT(n_routed, k);
}

TEST(SelkvRoute, TiesGoToTheEarlierTarget) {
  const LayerCase layer = make_layer({{1, 16}, 2, {0.25f, 0.0f}}, 64, Pattern::kEqualKeys, 4);
  HeadView head = test::view_head(layer, 0);
  HeadPlan plan;
  plan.kept = {0, 3, 5, 33, 34, 63};
  plan.targets = {3, 5, 34, 63};
  const SelkvRoutes routes = route_evicted(head, plan, 32, SelkvGate::kOne);
  ASSERT_EQ(routes.tokens.size(), 58u);
  for (std::size_t k = 0; k < routes.tokens.size(); ++k) {
    const std::uint32_t t = routes.tokens[k];
    const std::uint32_t expected = t < 3    ? SelkvRoutes::kDropped
                                   : t < 32 ? 1u
                                   : t < 34 ? SelkvRoutes::kDropped
                                            : 4u;
    EXPECT_EQ(routes.slots[k], expected) << t;
  }
}

TEST(SelkvRoute, TargetsFarBelowTheRowsMaximumAreStillCompared) {
  // All probability lies on token 0 of another block: the targets' own underflow in f32.
  LayerCase layer = make_layer({{1, 16}, 2, {1.0f, 0.0f}}, 64, Pattern::kRandom, 4);
  for (std::size_t g = 0; g < 2; ++g)
    for (std::size_t t = 0; t < 64; ++t)
      for (std::size_t c = 0; c < 16; ++c) layer.observed.queries[(g * 64 + t) * 16 + c] = 1.0f;
  for (std::size_t c = 0; c < 16; ++c) {
    layer.dense.key_row(0, 0)[c] = to_half(100.0f);
    layer.dense.key_row(0, 32)[c] = to_half(-3.0f);
    layer.dense.key_row(0, 33)[c] = to_half(-2.0f);
    layer.dense.key_row(0, 34)[c] = to_half(-4.0f);
  }
  test::observe(layer);
  HeadView head = test::view_head(layer, 0);
  HeadPlan plan;
  plan.kept = plan.targets = {0, 32, 33, 34};
  const SelkvRoutes routes = route_evicted(head, plan, 32, SelkvGate::kOne);
  for (std::size_t k = 0; k < routes.tokens.size(); ++k)
    EXPECT_EQ(routes.slots[k], routes.tokens[k] > 34 ? 2u : 0u) << routes.tokens[k];
}

TEST(SelkvRoute, StopsWhenCancelled) {
  const LayerCase layer = make_layer({{1, 16}, 2, {1.0f, 0.0f}}, 64, Pattern::kRandom, 4);
  HeadView head = test::view_head(layer, 0);
  CancelFlag cancel{true};
  head.cancel = &cancel;
  HeadPlan plan;
  plan.kept = plan.targets = {0, 32};
  EXPECT_THROW(route_evicted(head, plan, 32, SelkvGate::kOne), Error);
}

TEST(SelkvMerge, ValuesAreTheWeightedMean) {
  const LayerCase layer = make_layer({{2, 16}, 2, {0.25f, 0.0f}}, 200, Pattern::kRandom, 6);
  const Merged m = merge_random(layer, 1, "cos", SelkvGate::kCosine);
  const Half* values = layer.dense.head(1).values;
  std::size_t n_changed = 0;
  for (std::size_t i = 0; i < m.plan.kept.size(); ++i) {
    const std::size_t kept = m.plan.kept[i];
    double total = m.mass[kept];
    std::vector<double> sum(16);
    const auto add = [&](std::size_t t, double weight) {
      for (std::size_t c = 0; c < 16; ++c)
        sum[c] += weight * static_cast<double>(to_float(values[t * 16 + c]));
    };
    add(kept, total);
    for (std::size_t k = 0; k < m.routes.tokens.size(); ++k) {
      if (m.routes.slots[k] != i || !(m.routes.gates[k] > 0)) continue;
      const double weight = static_cast<double>(m.routes.gates[k]) * m.mass[m.routes.tokens[k]];
      add(m.routes.tokens[k], weight);
      total += weight;
    }
    EXPECT_EQ(m.merge.changed[i] != 0, total > m.mass[kept]);
    EXPECT_NEAR(static_cast<double>(m.merge.mass_ratio[i]), total / m.mass[kept],
                1e-4 * total / m.mass[kept]);
    if (m.merge.changed[i] == 0) continue;
    ++n_changed;
    for (std::size_t c = 0; c < 16; ++c)
      EXPECT_NEAR(static_cast<double>(m.merge.values[i * 16 + c]), sum[c] / total, 1e-5);
  }
  EXPECT_GT(n_changed, 10u);
}

TEST(SelkvMerge, TargetsWithoutMassAreFlooredAndCounted) {
  // Key 0 repels every query of the window so strongly that its mass underflows to 0.
  LayerCase layer = make_layer({{1, 16}, 1, {1.0f, 0.0f}}, 40, Pattern::kRandom, 6);
  for (std::size_t t = 0; t < 40; ++t)
    for (std::size_t c = 0; c < 16; ++c) {
      layer.observed.queries[t * 16 + c] = 1.0f;
      layer.dense.key_row(0, t)[c] = to_half(t == 0 ? -60.0f : 0.0f);
    }
  test::observe(layer);
  HeadPlan plan;
  plan.kept = plan.targets = {0, 36, 37, 38, 39};
  HeadView head = test::view_head(layer, 0);
  ASSERT_EQ(head.window_mass(4)[0], 0.0f);
  const Method method = builtin_methods().parse("selkv(gate=one,window=4,alpha=1,mode=head)");
  const HeadMerge merge = method.merger->merge(head, plan);
  EXPECT_EQ(merge.n_floored, 1u);
  EXPECT_EQ(merge.n_routed, 31u);
  EXPECT_EQ(merge.n_dropped, 4u);
  double routed = 0;
  for (std::size_t t = 1; t < 32; ++t) routed += static_cast<double>(head.window_mass(4)[t]);
  EXPECT_NEAR(static_cast<double>(merge.mass_ratio[0]), 1 + routed / 1e-8, 1e-3 * routed / 1e-8);
  const LayerEntries layer_entries = {{plan.kept, merge.mass_ratio, merge.n_merged}};
  const auto biases = method.compensator->compensate({&layer_entries, 1});
  EXPECT_NEAR(static_cast<double>(biases[0][0][0]), std::log(1 + routed / 1e-8), 1e-3);
  EXPECT_EQ(biases[0][0][1], 0.0f);
}

TEST(SelkvBias, Modes) {
  const std::vector<LayerEntries> layers = {
      {{{1, 4, 9}, {3, 2, 1}, {2, 1, 0}}, {{1, 9}, {1, 4}, {0, 7}}, {{2, 9}, {1, 1}, {0, 0}}},
      {{{1, 3}, {5, 1}, {1, 0}}}};
  const auto stage = [](const std::string& args) {
    return builtin_methods().parse("selkv bias=ratio(" + args + ")").compensator;
  };
  const auto bias = [&](const std::string& args) {
    EXPECT_FALSE(stage(args)->needs_all_layers());
    return stage(args)->compensate({layers.data(), 1})[0];
  };
  const auto own = bias("alpha=0.5,mode=head");
  EXPECT_FLOAT_EQ(own[0][0], 0.5f * std::log(3.0f));
  EXPECT_FLOAT_EQ(own[1][1], 0.5f * std::log(4.0f));
  EXPECT_EQ(own[0][2], 0.0f);
  const auto mean = bias("alpha=0.5,mode=layer");
  EXPECT_FLOAT_EQ(mean[0][0], 0.5f * std::log(2.0f));  // tokens 1: mean of 3 and 1
  EXPECT_FLOAT_EQ(mean[1][0], mean[0][0]);
  EXPECT_FLOAT_EQ(mean[0][1], 0.5f * std::log(2.0f));  // token 4: head 0 alone
  EXPECT_FLOAT_EQ(mean[2][1], 0.5f * std::log(2.0f));  // token 9: mean of 1, 4 and 1
  EXPECT_EQ(mean[2][0], 0.0f);
  const auto count = bias("alpha=1,mode=count");
  EXPECT_FLOAT_EQ(count[0][0], std::log(3.0f));
  EXPECT_FLOAT_EQ(count[1][1], std::log(8.0f));
  EXPECT_EQ(count[2][0], 0.0f);
  EXPECT_TRUE(stage("mode=global")->needs_all_layers());
  const auto all = stage("alpha=0.5,mode=global")->compensate(layers);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_FLOAT_EQ(all[0][0][0], 0.5f * std::log(3.0f));  // token 1: mean of 3, 1 and 5
  EXPECT_FLOAT_EQ(all[1][0][0], all[0][0][0]);
  EXPECT_FLOAT_EQ(all[0][1][1], 0.5f * std::log(2.0f));  // token 9: as in its only layer
  EXPECT_EQ(all[1][0][1], 0.0f);
  for (const auto& head : bias("alpha=0,mode=layer"))
    for (const float b : head) EXPECT_EQ(b, 0.0f);
  EXPECT_FALSE(builtin_methods().parse("selkv(alpha=0)").compensator->uses_bias());
  EXPECT_TRUE(builtin_methods().parse("selkv").compensator->uses_bias());
}

TEST(Selkv, ReadsTheLastQueriesAndTheAttentionWithinBlocks) {
  const Observation whole = builtin_methods().parse("selkv(block=64)").observation(1000);
  EXPECT_EQ(whole.n_queries, 32u);
  EXPECT_EQ(whole.block, 64u);
  const Observation plain = builtin_methods().parse("selkv merge=none bias=none").observation(1000);
  EXPECT_EQ(plain.n_queries, 32u);
  EXPECT_EQ(plain.block, 0u);
}

}  // namespace
}  // namespace precis
