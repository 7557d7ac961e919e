// Pooling, scorers and selectors against direct evaluations of their definitions.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "base/error.h"
#include "compress/layer_case.h"
#include "methods/pooling.h"
#include "methods/registry.h"

namespace precis {
namespace {

using test::LayerCase;
using test::make_layer;
using test::Pattern;

constexpr LayerShape kShape{{2, 16}, 3, {0.25f, 0.0f}};

std::vector<float> scores_of(const char* scorer, HeadView& head) {
  const Method method = builtin_methods().parse(std::string("score=") + scorer + " select=head");
  std::vector<float> scores(head.n_tokens);
  method.scorer->score(head, scores);
  return scores;
}

TEST(Pooling, AveragesWithZerosThatCount) {
  const std::vector<float> scores = {1, 2, 3, 4};
  std::vector<float> pooled(4);
  average_pool(scores, 3, pooled);
  EXPECT_EQ(pooled, (std::vector<float>{1, 2, 3, 7.0f / 3}));
  average_pool(scores, 1, pooled);
  EXPECT_EQ(pooled, scores);
  average_pool(scores, 101, pooled);
  EXPECT_EQ(pooled, std::vector<float>(4, 10.0f / 101));
}

TEST(Pooling, TakesTheMaximumInside) {
  const std::vector<float> scores = {-1, -3, -2, -5, -4};
  std::vector<float> pooled(5);
  max_pool(scores, 3, pooled);
  EXPECT_EQ(pooled, (std::vector<float>{-1, -1, -2, -2, -4}));
  max_pool({}, 3, {});
}

TEST(Pooling, RejectsEvenKernels) {
  EXPECT_NO_THROW(check_pool_width(7));
  EXPECT_THROW(check_pool_width(6), Error);
}

TEST(SelkvScore, IsPooledMassTimesNorm) {
  const LayerCase layer = make_layer(kShape, 80, Pattern::kRandom, 1);
  HeadView head = test::view_head(layer, 1);
  const std::vector<float> scores = scores_of("selkv(window=16,pool=3)", head);
  const std::span<const float> mass = head.window_mass(16);
  const std::span<const float> norms = head.value_norms();
  for (std::size_t j = 0; j < 80; ++j) {
    double expected = 0;
    for (std::size_t i = j == 0 ? 0 : j - 1; i <= std::min<std::size_t>(j + 1, 79); ++i)
      expected += static_cast<double>(mass[i]) * static_cast<double>(norms[i]) / 3;
    EXPECT_NEAR(static_cast<double>(scores[j]), expected, 1e-5 * expected);
  }
}

TEST(SnapkvScore, PoolsPrefixAndWindowApart) {
  const LayerCase layer = make_layer(kShape, 80, Pattern::kRandom, 2);
  HeadView head = test::view_head(layer, 0);
  const std::span<const float> mass = head.window_mass(20);
  const std::vector<float> scores = scores_of("snapkv(window=20,pool=5,kind=max)", head);
  const std::vector<float> means = scores_of("snapkv(window=20,pool=5,kind=avg)", head);
  for (std::size_t j = 0; j < 80; ++j) {
    const std::size_t low = j < 60 ? 0 : 60;
    const std::size_t high = j < 60 ? 60 : 80;
    float largest = 0;
    float sum = 0;
    for (std::size_t i = std::max(low, j < 2 ? 0 : j - 2); i < std::min(high, j + 3); ++i) {
      largest = std::max(largest, mass[i]);
      sum += mass[i];
    }
    EXPECT_FLOAT_EQ(scores[j], largest / (20 * 3)) << j;
    EXPECT_FLOAT_EQ(means[j], sum / 5 / (20 * 3)) << j;
  }
}

TEST(SnapkvScore, WorksBelowItsWindow) {
  const LayerCase layer = make_layer(kShape, 10, Pattern::kRandom, 2);
  HeadView head = test::view_head(layer, 0);
  const std::vector<float> scores = scores_of("snapkv(window=32,pool=1)", head);
  double total = 0;
  for (const float score : scores) total += static_cast<double>(score);
  EXPECT_NEAR(total, 1.0, 1e-5);
}

TEST(RandomScore, DependsOnTheSeedOnly) {
  HeadView head;  // it reads nothing else
  head.n_tokens = 5000;
  head.seed = 1;
  const std::vector<float> first = scores_of("random", head);
  EXPECT_EQ(scores_of("random", head), first);
  head.seed = 2;
  const std::vector<float> second = scores_of("random", head);
  std::size_t equal = 0;
  double mean = 0;
  double correlation = 0;
  for (std::size_t t = 0; t < 5000; ++t) {
    EXPECT_GE(first[t], 0.0f);
    EXPECT_LT(first[t], 1.0f);
    equal += first[t] == second[t] ? 1 : 0;
    mean += static_cast<double>(first[t]) / 5000;
    correlation +=
        (static_cast<double>(first[t]) - 0.5) * (static_cast<double>(second[t]) - 0.5) / 5000;
  }
  EXPECT_LT(equal, 5u);
  EXPECT_NEAR(mean, 0.5, 0.02);
  EXPECT_NEAR(correlation * 12, 0.0, 0.06);
}

// One test table: scores of 2 or more heads, m entries per head.
struct Table {
  std::size_t n = 0;
  std::vector<std::vector<float>> scores;

  std::vector<HeadPlan> select(const std::string& selector, std::size_t m) const {
    const Method method = builtin_methods().parse("score=random select=" + selector);
    std::vector<float> flat;
    for (const auto& head : scores) flat.insert(flat.end(), head.begin(), head.end());
    LayerTable table;
    table.n_layers = 1;
    table.n_kv_heads = scores.size();
    table.n_tokens = n;
    table.scores = flat.data();
    table.protection = method.selector->protection();
    table.n_entries = m * table.n_kv_heads;
    return method.selector->select(table);
  }
};

using Tokens = std::vector<std::uint32_t>;

TEST(SelectHead, EachHeadKeepsItsOwnBest) {
  const Table table{8, {{9, 1, 5, 2, 8, 3, 0, 0}, {0, 7, 7, 7, 7, 7, 9, 9}}};
  const std::vector<HeadPlan> plans = table.select("head(recent=2,sinks=1)", 5);
  EXPECT_EQ(plans[0].kept, (Tokens{0, 2, 4, 6, 7}));
  EXPECT_EQ(plans[1].kept, (Tokens{0, 1, 2, 6, 7}));  // ties go to the earlier token
  EXPECT_EQ(plans[0].targets, plans[0].kept);
  EXPECT_EQ(plans[1].targets, plans[1].kept);
}

TEST(SelectHead, OnlyProtectedTokensIfThatIsAll) {
  const Table table{8, {{9, 9, 9, 9, 9, 9, 9, 9}}};
  EXPECT_EQ(table.select("head(recent=3,sinks=2)", 5)[0].kept, (Tokens{0, 1, 5, 6, 7}));
}

TEST(SelectShared, TrimsTheUnionByTheMean) {
  // Own best two: head 0 {1, 3}, head 1 {2, 3}; sums 1: 9, 2: 11, 3: 14; 4 has a high sum, but is
  // in no head's own set.
  const Table table{6, {{0, 9, 1, 7, 6, 0}, {0, 0, 10, 7, 6, 0}}};
  const std::vector<HeadPlan> plans = table.select("shared(recent=1,sinks=1)", 4);
  EXPECT_EQ(plans[0].kept, (Tokens{0, 2, 3, 5}));
  EXPECT_EQ(plans[1].kept, plans[0].kept);
  EXPECT_EQ(plans[0].targets, (Tokens{0, 3, 5}));
  EXPECT_EQ(plans[1].targets, (Tokens{0, 2, 3, 5}));
}

TEST(SelectShared, RandomTablesMatchTheDefinition) {
  std::mt19937 draw(3);
  for (int round = 0; round < 300; ++round) {
    Table table;
    table.n = 5 + draw() % 60;
    const std::size_t n_heads = 1 + draw() % 5;
    const std::size_t sinks = draw() % 3;
    const std::size_t recent = draw() % 3;
    for (std::size_t h = 0; h < n_heads; ++h) {
      table.scores.emplace_back();
      for (std::size_t t = 0; t < table.n; ++t)  // small integers: many ties
        table.scores[h].push_back(static_cast<float>(draw() % 12));
    }
    const std::size_t n_protected = sinks + recent;
    const std::size_t m = n_protected + draw() % (table.n - n_protected);
    if (m == 0) continue;
    const std::vector<HeadPlan> plans =
        table.select(concat("shared(recent=", recent, ",sinks=", sinks, ")"), m);

    // The definition, by sorting: best first, earlier token first among equals.
    const auto best = [&](const std::set<std::uint32_t>& from, auto score, std::size_t count) {
      Tokens order(from.begin(), from.end());
      std::stable_sort(order.begin(), order.end(),
                       [&](std::uint32_t a, std::uint32_t b) { return score(a) > score(b); });
      return std::set<std::uint32_t>(order.begin(),
                                     order.begin() + static_cast<std::ptrdiff_t>(count));
    };
    std::set<std::uint32_t> open;
    std::set<std::uint32_t> closed;
    for (std::uint32_t t = 0; t < table.n; ++t)
      (t < sinks || t + recent >= table.n ? closed : open).insert(t);
    std::vector<std::set<std::uint32_t>> own;
    std::set<std::uint32_t> both;
    for (std::size_t h = 0; h < n_heads; ++h) {
      own.push_back(best(
          open, [&](std::uint32_t t) { return table.scores[h][t]; }, m - n_protected));
      both.insert(own[h].begin(), own[h].end());
    }
    const auto mean = [&](std::uint32_t t) {
      float sum = 0;
      for (const auto& head : table.scores) sum += head[t];
      return sum / static_cast<float>(n_heads);
    };
    std::set<std::uint32_t> kept = best(both, mean, m - n_protected);
    for (std::size_t h = 0; h < n_heads; ++h) {
      std::set<std::uint32_t> targets = closed;
      for (const std::uint32_t t : kept)
        if (own[h].count(t) != 0) targets.insert(t);
      EXPECT_EQ(plans[h].targets, Tokens(targets.begin(), targets.end()));
      std::set<std::uint32_t> all = kept;
      all.insert(closed.begin(), closed.end());
      EXPECT_EQ(plans[h].kept, Tokens(all.begin(), all.end()));
      EXPECT_EQ(plans[h].kept.size(), m);
    }
  }
}

TEST(Streaming, KeepsSinksAndTheMostRecentTokens) {
  const LayerCase layer = make_layer(kShape, 100, Pattern::kRandom, 4);
  Condenser condenser(builtin_methods().parse("streaming"), Budget::parse("30%"), {kShape}, 100, 1);
  SerialExecutor serial;
  const FrozenLayer frozen = test::condense_only(condenser, layer.dense, layer.observed, serial);
  const auto m = static_cast<std::int32_t>(condenser.entries_per_head());
  std::vector<std::int32_t> expected = {0, 1, 2, 3};
  for (std::int32_t t = 100 - (m - 4); t < 100; ++t) expected.push_back(t);
  EXPECT_EQ(test::kept_positions(frozen, 0), expected);
  EXPECT_EQ(test::kept_positions(frozen, 1), expected);
}

TEST(Random, OtherSeedsKeepOtherTokens) {
  const LayerCase layer = make_layer(kShape, 200, Pattern::kRandom, 4);
  std::set<std::vector<std::int32_t>> sets;
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    Condenser condenser(builtin_methods().parse("random"), Budget::parse("30%"), {kShape}, 200,
                        seed);
    SerialExecutor serial;
    const FrozenLayer frozen = test::condense_only(condenser, layer.dense, layer.observed, serial);
    sets.insert(test::kept_positions(frozen, 0));
    sets.insert(test::kept_positions(frozen, 1));
  }
  EXPECT_EQ(sets.size(), 10u);
}

}  // namespace
}  // namespace precis
