// ResKV: cases worked out by hand, plain loops in double, and what the driver makes of it. An
// independent implementation of the whole is in tests/compare_reskv.py.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "methods/held_out.h"
#include "methods/key_clusters.h"
#include "methods/plain_layer.h"
#include "support/head_rows.h"

namespace precis {
namespace {

using namespace test;

constexpr LayerShape kShape{{2, 32}, 2, {0.25f, 0.0f}};

std::shared_ptr<const Residual> stage(const std::string& args) {
  return builtin_methods().parse("score=random select=head residual=reskv" + args).residual;
}

HeadPlan plan_from(std::vector<std::uint32_t> kept) { return {kept, kept}; }

// Every third token before the last n_recent, and those.
HeadPlan sparse_plan(std::size_t n, std::size_t n_recent) {
  std::vector<std::uint32_t> kept;
  for (std::uint32_t t = 0; t < n; ++t)
    if (t + n_recent >= n || t % 3 == 0) kept.push_back(t);
  return plan_from(kept);
}

std::vector<std::uint32_t> evicted_of(const HeadPlan& plan, std::size_t n) {
  std::vector<std::uint32_t> out;
  for (std::uint32_t t = 0; t < n; ++t)
    if (!std::binary_search(plan.kept.begin(), plan.kept.end(), t)) out.push_back(t);
  return out;
}

// Trials of one head: without residual entries, and with at most r.
std::vector<ResidualTrial> tried(const LayerCase& layer, std::size_t head, const HeadPlan& plan,
                                 std::size_t r, const std::string& args) {
  HeadView view = view_head(layer, head);
  std::vector<float> scores(layer.n_tokens);
  for (std::size_t t = 0; t < scores.size(); ++t) scores[t] = static_cast<float>((t * 37) % 101);
  view.scores = scores.data();
  const std::vector<HeadSplit> splits = {{&plan, nullptr, {}, 0}, {&plan, nullptr, {}, r}};
  return stage(args)->try_splits(view, splits);
}

// Logits, in double, of query head `member` at `token` over given rows.
Row logits_over(const LayerCase& layer, std::size_t head, std::size_t member, std::size_t token,
                const std::vector<Row>& keys) {
  const std::size_t d = layer.shape.kv.head_dim;
  const float* query = layer.observed.queries.data() +
                       ((head * layer.shape.group + member) * layer.n_tokens + token) * d;
  Row out;
  for (const Row& key : keys) {
    double sum = 0;
    for (std::size_t c = 0; c < d; ++c) sum += static_cast<double>(query[c]) * key[c];
    out.push_back(sum * static_cast<double>(layer.shape.rule.scale));
  }
  return out;
}

Row row_of(const std::vector<float>& rows, std::size_t i, std::size_t d) {
  Row out;
  for (std::size_t c = 0; c < d; ++c) out.push_back(static_cast<double>(rows[i * d + c]));
  return out;
}

TEST(Reskv, CountsOfEqualKeysReproduceFullAttention) {
  LayerCase layer = make_layer(kShape, 200, Pattern::kRandom, 1);
  const HeadPlan plan = sparse_plan(200, 60);
  const std::vector<std::uint32_t> evicted = evicted_of(plan, 200);
  for (std::size_t h = 0; h < 2; ++h)
    for (const std::uint32_t t : evicted)
      std::copy_n(layer.dense.key_row(h, evicted[0]), 32, layer.dense.key_row(h, t));
  observe(layer);
  for (std::size_t h = 0; h < 2; ++h) {
    const auto trials = tried(layer, h, plan, 1, "(gate=off)");
    ASSERT_EQ(trials[1].entries.size(), 1u);
    EXPECT_FLOAT_EQ(trials[1].entries.bias[0], std::log(static_cast<float>(evicted.size())));
    EXPECT_GT(trials[0].error, 1e-2 * trials[0].energy) << "or there is nothing to restore";
    EXPECT_LT(trials[1].error, 1e-6 * trials[1].energy);
    EXPECT_NEAR(trials[1].restored_mass, trials[1].evicted_mass, 1e-3 * trials[1].evicted_mass);
    // Several clusters of one key: all tokens go to the first, the others keep their own token.
    const auto more = tried(layer, h, plan, 5, "(gate=off)");
    ASSERT_EQ(more[1].entries.size(), 5u);
    EXPECT_LT(more[1].error, 1e-6 * more[1].energy);
  }
}

TEST(Reskv, MassOfASingleQueryIsTheMembers) {
  LayerCase layer = make_layer({{1, 16}, 1, {0.5f, 0.0f}}, 200, Pattern::kRandom, 2);
  // One query for the whole window.
  for (std::size_t t = 1; t < 200; ++t)
    std::copy_n(layer.observed.queries.data(), 16, layer.observed.queries.data() + t * 16);
  observe(layer);
  const HeadPlan plan = sparse_plan(200, 60);
  const auto trials = tried(layer, 0, plan, 3, "(calibrate=mass,gate=off)");
  const ResidualEntries& entries = trials[1].entries;
  ASSERT_EQ(entries.size(), 3u);
  std::vector<Row> evicted_keys;
  for (const std::uint32_t t : evicted_of(plan, 200)) evicted_keys.push_back(key_of(layer, 0, t));
  double members = 0;
  for (const double z : logits_over(layer, 0, 0, 199, evicted_keys)) members += std::exp(z);
  double summary = 0;
  for (std::size_t j = 0; j < 3; ++j)
    summary += std::exp(logits_over(layer, 0, 0, 199, {row_of(entries.keys, j, 16)})[0] +
                        static_cast<double>(entries.bias[j]));
  EXPECT_NEAR(summary, members, 2e-3 * members);  // means are rounded to f16 where they are used
  EXPECT_NEAR(trials[1].restored_mass, trials[1].evicted_mass, 2e-3 * trials[1].evicted_mass);
  // Jensen: the count alone is less.
  const auto counted = tried(layer, 0, plan, 3, "(calibrate=count,gate=off)");
  EXPECT_LT(counted[1].restored_mass, 0.9 * counted[1].evicted_mass);
  const auto scaled = tried(layer, 0, plan, 3, "(calibrate=mass,gate=off,scale=0.5)");
  EXPECT_NEAR(scaled[1].restored_mass, 0.5 * trials[1].restored_mass, 1e-4);
}

// Errors and masses of the held-out queries as loops over what each of them sees: kept tokens, and
// from the horizon on all.
void compare_trials(std::size_t horizon) {
  const std::size_t n = 240;  // 60 queries of the window, some evicted tokens among them
  const LayerCase layer = make_layer({{1, 16}, 2, {0.6f, 0.0f}}, n, Pattern::kRandom, 3);
  const HeadPlan plan = sparse_plan(n, 8);
  const std::string args = "(gate=linear,low=0.05,high=0.3,least=0.2,local=" +
                           std::string(horizon < n ? "exact" : "kept") + ")";
  const auto trials = tried(layer, 0, plan, 20, args);
  const ResidualEntries& entries = trials[1].entries;
  const std::vector<std::uint32_t> evicted = evicted_of(plan, n);
  HeadView view = view_head(layer, 0);
  std::vector<float> scores(n);
  for (std::size_t t = 0; t < n; ++t) scores[t] = static_cast<float>((t * 37) % 101);
  view.scores = scores.data();
  const KeyClusters clusters = cluster_keys(view, evicted, 20, {1024, 4, nullptr});
  ASSERT_EQ(clusters.size(), entries.size());
  double error = 0, energy = 0, evicted_mass = 0, restored = 0, base_error = 0;
  for (std::size_t t = n - 60; t < n; ++t) {
    if ((t - (n - 60)) % 4 != 3) continue;
    for (std::size_t g = 0; g < 2; ++g) {
      const PlainAttention full = plain_attention(layer, 0, g, t);
      double largest = 0, kept = 0, summary = 0, total = 0;
      Row out(16, 0.0), base(16, 0.0);
      double z_full = 0;
      for (const double z : full.logits) z_full += std::exp(z);
      for (std::uint32_t i = 0; i <= t; ++i) {
        if (i < horizon && !std::binary_search(plan.kept.begin(), plan.kept.end(), i)) continue;
        const double e = std::exp(full.logits[i]);
        kept += e;
        largest = std::max(largest, e);
        for (std::size_t c = 0; c < 16; ++c) out[c] += e * value_of(layer, 0, i)[c];
      }
      base = out;
      const double s = std::clamp((largest / kept - 0.05) / 0.25, 0.0, 1.0);
      const double factor = 1 - 0.8 * s;
      for (std::size_t j = 0; j < entries.size(); ++j) {
        const auto members = clusters.members(j);
        const auto n_seen = std::count_if(members.begin(), members.end(),
                                          [&](std::uint32_t m) { return m <= t && m < horizon; });
        if (n_seen == 0) continue;
        const double e = std::exp(logits_over(layer, 0, g, t, {row_of(entries.keys, j, 16)})[0]) *
                         static_cast<double>(n_seen) * factor;
        summary += e;
        for (std::size_t c = 0; c < 16; ++c) out[c] += e * row_of(entries.values, j, 16)[c];
      }
      total = kept + summary;
      for (std::size_t c = 0; c < 16; ++c) {
        error += std::pow(out[c] / total - full.output[c], 2);
        base_error += std::pow(base[c] / kept - full.output[c], 2);
        energy += full.output[c] * full.output[c];
      }
      evicted_mass += 1 - kept / z_full;
      restored += summary / z_full;
    }
  }
  EXPECT_EQ(trials[1].n_rows, 30u);
  EXPECT_NEAR(trials[0].error, base_error, 1e-4 * base_error);
  EXPECT_NEAR(trials[1].error, error, 2e-3 * error);
  EXPECT_NEAR(trials[1].energy, energy, 1e-4 * energy);
  EXPECT_NEAR(trials[1].evicted_mass, evicted_mass, 1e-4 * evicted_mass);
  EXPECT_NEAR(trials[1].restored_mass, restored, 2e-3 * restored);
}

TEST(Reskv, TrialsMatchPlainLoops) {
  compare_trials(240);
  compare_trials(180);
}

TEST(Reskv, ClustersHoldEveryTokenOnceAndStayInTheirRuns) {
  for (const Pattern pattern :
       {Pattern::kRandom, Pattern::kZeros, Pattern::kEqualKeys, Pattern::kHuge}) {
    const LayerCase layer = make_layer({{1, 16}, 1, {0.25f, 0.0f}}, 300, pattern, 4);
    HeadView view = view_head(layer, 0);
    const std::vector<float> scores(300, 1.0f);
    view.scores = scores.data();
    std::vector<std::uint32_t> tokens(280);
    std::iota(tokens.begin(), tokens.end(), 5u);
    for (const std::size_t k : {1u, 3u, 16u, 60u, 279u, 280u, 400u}) {
      const KeyClusters clusters = cluster_keys(view, tokens, k, {70, 4, nullptr});
      EXPECT_LE(clusters.size(), k);
      EXPECT_GE(clusters.size() + 4, std::min<std::size_t>(k, 280));
      std::vector<std::uint32_t> all;
      for (std::size_t j = 0; j < clusters.size(); ++j) {
        const auto members = clusters.members(j);
        ASSERT_FALSE(members.empty());
        all.insert(all.end(), members.begin(), members.end());
        if (j > 0) {
          EXPECT_LT(clusters.members(j - 1).back(), members.back());
        }
        if (k >= 16) {
          EXPECT_EQ((members.front() - 5) / 70, (members.back() - 5) / 70) << k;
        }
      }
      std::sort(all.begin(), all.end());
      EXPECT_EQ(all, tokens) << pattern_name(pattern);
    }
  }
}

// Keys in two far groups, scores that put both seeds into one of them.
TEST(Reskv, LloydFindsGroupsThatTheSeedsMissed) {
  std::vector<Row> keys(40);
  for (std::size_t t = 0; t < 40; ++t)
    keys[t] = {t < 20 ? 8.0 : -8.0, 0.01 * static_cast<double>(t)};
  const LayerCase layer = hand_layer(keys, {}, {});
  HeadView view = view_head(layer, 0);
  std::vector<float> scores(40, 0.0f);
  scores[3] = scores[7] = 1.0f;
  view.scores = scores.data();
  std::vector<std::uint32_t> tokens(40);
  std::iota(tokens.begin(), tokens.end(), 0u);
  const KeyClusters clusters = cluster_keys(view, tokens, 2, {1024, 10, nullptr});
  ASSERT_EQ(clusters.size(), 2u);
  EXPECT_EQ(clusters.members(0).size(), 20u);
  EXPECT_EQ(clusters.members(1).front(), 20u);
  EXPECT_NEAR(mean_rows(clusters, layer.dense.head(0).keys, 8)[0], 8.0f, 1e-5f);
}

// Only differences that queries see count.
TEST(Reskv, TheQueryMetricIgnoresWhatNoQueryReads) {
  std::vector<Row> keys(40);
  for (std::size_t t = 0; t < 40; ++t) keys[t] = {t % 2 == 0 ? 1.0 : -1.0, t < 20 ? 50.0 : -50.0};
  const LayerCase layer = hand_layer(keys, {}, std::vector<Row>(40, Row{3.0, 0.0}));
  HeadView view = view_head(layer, 0);
  std::vector<float> scores(40, 0.0f);
  scores[0] = scores[21] = 1.0f;
  view.scores = scores.data();
  std::vector<std::uint32_t> tokens(40);
  std::iota(tokens.begin(), tokens.end(), 0u);
  const std::vector<std::uint32_t> queries = {30, 31, 32};
  const QueryRows rows(view, queries, 40);
  const std::vector<float> factor = query_metric(view, rows.data(), rows.n_rows());
  EXPECT_NEAR(factor[0], 3.0f, 1e-5f);
  const KeyClusters seen = cluster_keys(view, tokens, 2, {1024, 10, factor.data()});
  EXPECT_EQ(seen.members(0)[1] - seen.members(0)[0], 2u) << "even and odd tokens";
  const KeyClusters plain = cluster_keys(view, tokens, 2, {1024, 10, nullptr});
  EXPECT_EQ(plain.members(0).back(), 19u) << "first and second half";
}

std::vector<std::vector<ResidualTrial>> with_errors(
    const std::vector<std::vector<double>>& errors) {
  std::vector<std::vector<ResidualTrial>> out;
  for (const auto& head : errors) {
    out.emplace_back();
    for (const double error : head) {
      out.back().emplace_back();
      out.back().back().error = error;
    }
  }
  return out;
}

TEST(Reskv, ResidualEntriesMustSaveTheirPartOfTheError) {
  using Splits = std::vector<std::size_t>;
  const auto trials = with_errors({{100, 96, 94, 97}, {100, 95.5, 99, 120}, {0, 0, 0, 0}});
  const std::vector<std::vector<std::uint8_t>> all(3, {1, 1, 1, 1});
  EXPECT_EQ(stage("(delta=0.05)")->choose(trials, all), (Splits{2, 0, 0}));
  EXPECT_EQ(stage("(delta=0.01)")->choose(trials, all), (Splits{2, 1, 0}));
  EXPECT_EQ(stage("(delta=0.1)")->choose(trials, all), (Splits{0, 0, 0}));
  const std::vector<std::vector<std::uint8_t>> some = {{1, 1, 0, 1}, {1, 1, 1, 1}, {1, 1, 1, 1}};
  EXPECT_EQ(stage("(delta=0.03)")->choose(trials, some), (Splits{1, 1, 0}));
  // Together: 200 without, 191.5, 193, 217.
  EXPECT_EQ(stage("(validate=layer,delta=0.04)")->choose(trials, all), (Splits{1, 1, 1}));
  EXPECT_EQ(stage("(validate=layer,delta=0.05)")->choose(trials, all), (Splits{0, 0, 0}));
  EXPECT_EQ(stage("(validate=layer,delta=0.01)")->choose(trials, some), (Splits{1, 1, 1}));
  EXPECT_EQ(stage("(validate=off)")->choose(trials, some), (Splits{1, 1, 1}));
}

struct Condensed {
  std::vector<FrozenLayer> layers;
  CompressionReport report;
};

Condensed condense(const std::string& spec, const std::vector<LayerCase>& layers,
                   const RowTypes& rows, std::size_t n_workers = 1) {
  std::vector<LayerShape> shapes;
  for (const LayerCase& layer : layers) shapes.push_back(layer.shape);
  ThreadExecutor executor(n_workers);
  Condenser condenser(builtin_methods().parse(spec), Budget::parse("40%"), shapes,
                      layers[0].n_tokens, 5, 0, rows);
  Condensed out;
  for (std::size_t l = 0; l < layers.size(); ++l)
    condenser.condense_layer(l, layers[l].dense, layers[l].observed, executor);
  out.layers = condenser.finish(executor);
  out.report = condenser.report();
  return out;
}

std::string bits(const Condensed& run) {
  std::string out;
  for (const FrozenLayer& layer : run.layers) out += fingerprint(layer);
  return out;
}

const std::vector<RowTypes> kTypes = {
    {}, {RowType::kQ8_0, RowType::kQ8_0}, {RowType::kQ4, RowType::kQ4}};

TEST(Reskv, WithoutAGainItIsTheBaseMethodBitForBit) {
  const std::vector<LayerCase> layers = {make_layer(kShape, 260, Pattern::kRandom, 5),
                                         make_layer(kShape, 260, Pattern::kRandom, 6)};
  for (const std::string base : {"snapkv", "selkv", "selkv(mode=global)", "adakv", "cam", "tova",
                                 "adakv layers=global", "selkv(mode=global) layers=global"})
    for (const RowTypes& rows : kTypes) {
      const Condensed run = condense(base + " residual=reskv(delta=0.99)", layers, rows);
      EXPECT_EQ(bits(run), bits(condense(base, layers, rows))) << base;
      ASSERT_EQ(run.report.residuals.size(), 2u);
      EXPECT_EQ(run.report.residuals[1][0].n_entries, 0u);
      EXPECT_GT(run.report.residuals[1][0].error_before, 0);
      EXPECT_EQ(run.report.residuals[1][0].error_before, run.report.residuals[1][0].error_after);
    }
}

TEST(Reskv, SpendsTheBudgetOfTheBaseMethodOnEveryRowType) {
  const std::vector<LayerCase> layers = {make_layer(kShape, 400, Pattern::kRandom, 7),
                                         make_layer(kShape, 400, Pattern::kRandom, 8)};
  for (const std::string base : {"snapkv", "selkv", "adakv", "adakv layers=global"})
    for (const RowTypes& rows : kTypes) {
      const Condensed plain = condense(base, layers, rows);
      const Condensed run =
          condense(base + " residual=reskv(validate=off,parts=0.25)", layers, rows);
      EXPECT_LE(run.report.kept_bytes, plain.report.kept_bytes + 2 * 2 * 160 * 4) << base;
      EXPECT_GT(run.report.kept_bytes, plain.report.kept_bytes * 97 / 100) << base;
      for (const FrozenLayer& layer : run.layers) {
        std::size_t n_residual = 0, n = 0;
        for (std::size_t h = 0; h < 2; ++h) {
          n_residual += layer.n_residual(h);
          n += layer.n_entries(h);
          EXPECT_EQ(layer.residual(h).types, layer.head(h).types);
        }
        EXPECT_GT(n_residual * 5, n) << base;
        EXPECT_LE(n_residual * 4, n + 4) << base;
      }
      EXPECT_EQ(bits(run),
                bits(condense(base + " residual=reskv(validate=off,parts=0.25)", layers, rows, 3)));
    }
}

// Counts add up to the evicted tokens that no kept entry took in.
TEST(Reskv, BehindAMergeItHoldsWhatTheMergeDrops) {
  const LayerCase layer = make_layer(kShape, 300, Pattern::kRandom, 9);
  for (const char* base :
       {"snapkv", "selkv select=head", "merging", "weightedkv bias=none", "cam"}) {
    const std::string spec = std::string(base) + " residual=reskv(validate=off,parts=0.25)";
    const Method method = builtin_methods().parse(spec);
    const Condensed run = condense(spec, {layer}, {});
    for (std::size_t h = 0; h < 2; ++h) {
      HeadPlan plan;
      for (const std::int32_t p : kept_positions(run.layers[0], h))
        plan.kept.push_back(static_cast<std::uint32_t>(p));
      plan.targets = plan.kept;
      std::size_t expected = 300 - plan.kept.size();
      if (method.merger != nullptr) {
        HeadView view = view_head(layer, h);
        view.seed = 0;
        const HeadMerge merge = method.merger->merge(view, plan);
        EXPECT_TRUE(std::is_sorted(merge.absorbed.begin(), merge.absorbed.end()));
        EXPECT_GT(merge.absorbed.size(), 10u) << base;
        if (std::string(base) == "cam") continue;  // its draws depend on the driver's seed
        expected -= merge.absorbed.size();
      }
      double total = 0;
      const PackedView residual = run.layers[0].residual(h);
      ASSERT_EQ(residual.n > 0, expected > 0) << base;
      for (std::size_t j = 0; j < residual.n; ++j)
        total += std::exp(static_cast<double>(residual.bias[j]));
      EXPECT_NEAR(total, static_cast<double>(expected), 1e-2) << base;
    }
  }
}

// What clustering is compared with: a partition that knows nothing of keys.
TEST(Reskv, RandomClustersAreDrawnFromTheSeed) {
  LayerCase layer = make_layer(kShape, 300, Pattern::kRandom, 12);
  std::vector<std::uint32_t> tokens(250);
  std::iota(tokens.begin(), tokens.end(), 3u);
  const std::vector<float> scores(300, 1.0f);
  const auto drawn = [&](std::uint64_t seed, bool is_random) {
    HeadView view = view_head(layer, 0);
    view.scores = scores.data();
    view.seed = seed;
    return cluster_keys(view, tokens, 20, {100, 4, nullptr, is_random});
  };
  const KeyClusters a = drawn(1, true);
  EXPECT_EQ(a.size(), 20u);
  std::size_t largest = 0;
  for (std::size_t j = 0; j < a.size(); ++j) {
    EXPECT_GE(a.members(j).size(), 1u);
    largest = std::max(largest, a.members(j).size());
  }
  EXPECT_LT(largest, 35u) << "12.5 on average";
  std::vector<std::uint32_t> all = a.tokens;
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all, tokens);
  EXPECT_EQ(drawn(1, true).tokens, a.tokens);
  EXPECT_NE(drawn(2, true).tokens, a.tokens);
  EXPECT_NE(drawn(1, false).tokens, a.tokens);
}

TEST(Reskv, AShortPromptHasNoResidualAndSaysSo) {
  const LayerCase layer = make_layer(kShape, 127, Pattern::kRandom, 10);
  const Condensed run = condense("reskv(validate=off)", {layer}, {});
  EXPECT_EQ(bits(run), bits(condense("snapkv", {layer}, {})));
  ASSERT_TRUE(run.report.residual_skipped.has_value());
  EXPECT_NE(run.report.residual_skipped->find("127 tokens"), std::string::npos);
  EXPECT_TRUE(run.report.residuals.empty());
  const LayerCase longer = make_layer(kShape, 128, Pattern::kRandom, 10);
  EXPECT_GT(condense("reskv(validate=off)", {longer}, {}).layers[0].n_residual(0), 0u);
}

TEST(Reskv, RefusesWhatCannotBe) {
  const auto refused = [](const std::string& spec) {
    try {
      builtin_methods().parse(spec);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_NE(refused("reskv(low=0.5,high=0.4)").find("low must not be above"), std::string::npos);
  EXPECT_NE(refused("reskv positions=compact").find("positions=none"), std::string::npos);
  EXPECT_NE(refused("reskv(parts=0)").find("parts"), std::string::npos);
  EXPECT_NE(refused("full residual=reskv").find("lacks score="), std::string::npos);
}

TEST(Reskv, QueriesAreDealtThreeToOne) {
  const QueryTokens dealt = deal_queries(1000, 128);
  EXPECT_EQ(dealt.fit.size(), 96u);
  EXPECT_EQ(dealt.held.size(), 32u);
  EXPECT_EQ(dealt.fit.front(), 872u);
  EXPECT_EQ(dealt.held.front(), 875u);
  EXPECT_EQ(dealt.held.back(), 999u);
  EXPECT_EQ(stage("")->queries_needed(1000), 128u);
  EXPECT_EQ(stage("")->queries_needed(400), 100u);
  EXPECT_EQ(stage("")->queries_needed(127), 0u);
}

}  // namespace
}  // namespace precis
