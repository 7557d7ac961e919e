// Attention matching: fitted entries give queries that took no part nearer to what the whole prompt
// gave them, or stay as they were.
#include <gtest/gtest.h>

#include <random>

#include "methods/plain_layer.h"

namespace precis {
namespace {

using namespace test;

constexpr std::size_t kWidth = 16;

// Every second token of the first half has the key of the token before it, and another value: a
// kept one must count twice and hold the mean of both. With the same value it only must count
// twice. Queries differ in which half they look at, which is what tells weights.
LayerCase doubled(std::size_t n, std::uint32_t seed, bool same_values = false, float softcap = 0) {
  LayerCase layer = make_layer({{1, kWidth}, 2, {0.25f, softcap}}, n, Pattern::kRandom, seed);
  for (std::size_t t = 0; t < n; ++t)
    layer.dense.key_row(0, t)[0] = to_half(t < n / 2 ? 6.0f : -6.0f);
  for (std::size_t t = 1; t < n / 2; t += 2) {
    std::copy_n(layer.dense.key_row(0, t - 1), kWidth, layer.dense.key_row(0, t));
    if (same_values)
      std::copy_n(layer.dense.value_row(0, t - 1), kWidth, layer.dense.value_row(0, t));
  }
  observe(layer);
  return layer;
}

HeadPlan without_copies(std::size_t n) {
  HeadPlan plan;
  for (std::uint32_t t = 0; t < n; ++t)
    if (t >= n / 2 || t % 2 == 0) plan.kept.push_back(t);
  plan.targets = plan.kept;
  return plan;
}

// Plain softmax over the given tokens, with weights and values of their own.
Row output_of(const LayerCase& layer, const std::vector<std::uint32_t>& tokens, const Row& query,
              const HeadMerge* merged) {
  Row out(kWidth, 0.0);
  double total = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    Row value = value_of(layer, 0, tokens[i]);
    double logit = 0.25 * plain_dot(query, key_of(layer, 0, tokens[i]));
    const auto softcap = static_cast<double>(layer.shape.rule.softcap);
    if (softcap > 0) logit = softcap * std::tanh(logit / softcap);
    double weight = std::exp(logit);
    if (merged != nullptr) weight *= static_cast<double>(merged->mass_ratio[i]);
    if (merged != nullptr && merged->changed[i] != 0)
      for (std::size_t c = 0; c < kWidth; ++c)
        value[c] = static_cast<double>(merged->values[i * kWidth + c]);
    for (std::size_t c = 0; c < kWidth; ++c) out[c] += weight * value[c];
    total += weight;
  }
  for (double& x : out) x /= total;
  return out;
}

// Squared error of new queries after the prompt, summed.
double error_of_new_queries(const LayerCase& layer, const HeadPlan& plan, const HeadMerge* merged) {
  std::vector<std::uint32_t> all;
  for (std::uint32_t t = 0; t < layer.n_tokens; ++t) all.push_back(t);
  std::mt19937 engine(99);
  std::normal_distribution<double> normal;
  double error = 0;
  for (int q = 0; q < 64; ++q) {
    Row query(kWidth);
    for (double& x : query) x = normal(engine);
    const Row whole = output_of(layer, all, query, nullptr);
    const Row found = output_of(layer, plan.kept, query, merged);
    for (std::size_t c = 0; c < kWidth; ++c) error += (whole[c] - found[c]) * (whole[c] - found[c]);
  }
  return error;
}

TEST(Match, NewQueriesGetNearerToTheWholePrompt) {
  for (const std::uint32_t seed : {1u, 2u, 3u}) {
    const HeadPlan plan = without_copies(192);
    for (const std::string fit : {"both", "weights", "values"}) {
      const LayerCase layer = doubled(192, seed, fit == "weights", seed == 3 ? 1.5f : 0.0f);
      const double before = error_of_new_queries(layer, plan, nullptr);
      const HeadMerge merged = merged_by("match(fit=" + fit + ")", layer, 0, plan);
      const double after = error_of_new_queries(layer, plan, &merged);
      EXPECT_LT(after, 0.8 * before) << fit << ", seed " << seed;
    }
  }
}

// The first half counts half of what it should: its weights must rise against the other half's.
TEST(Match, WeightsMakeUpForMassThatIsGone) {
  const LayerCase layer = doubled(192, 4, true);
  const HeadPlan plan = without_copies(192);
  const HeadMerge merged = merged_by("match(gain=0,fit=weights)", layer, 0, plan);
  double first = 0, second = 0;
  for (std::size_t i = 0; i < plan.kept.size(); ++i)
    (plan.kept[i] < 96 ? first : second) += static_cast<double>(merged.mass_ratio[i]);
  EXPECT_GT(first / 48, 1.2 * second / 96);
}

TEST(Match, EachFitLeavesTheOtherAlone) {
  const LayerCase layer = doubled(192, 5, true);
  const HeadPlan plan = without_copies(192);
  const HeadMerge weights = merged_by("match(gain=0,fit=weights)", layer, 0, plan);
  const HeadMerge values = merged_by("match(gain=0,fit=values)", layer, 0, plan);
  std::size_t n_weighed = 0, n_changed = 0;
  for (std::size_t i = 0; i < plan.kept.size(); ++i) {
    EXPECT_EQ(weights.changed[i], 0);
    EXPECT_EQ(values.mass_ratio[i], 1.0f);
    EXPECT_GT(weights.mass_ratio[i], 0.0f);
    n_weighed += weights.mass_ratio[i] != 1.0f ? 1 : 0;
    n_changed += values.changed[i];
  }
  EXPECT_GT(n_weighed, 100u);
  EXPECT_EQ(n_changed, plan.kept.size());
}

// Nothing takes away the whole error, so that a fit is never used.
TEST(Match, AHeadThatDoesNotGainStaysAsItIs) {
  const LayerCase layer = doubled(128, 6);
  const HeadPlan plan = without_copies(128);
  const HeadMerge merged = merged_by("match(gain=1)", layer, 0, plan);
  for (std::size_t i = 0; i < plan.kept.size(); ++i) {
    EXPECT_EQ(merged.changed[i], 0);
    EXPECT_EQ(merged.mass_ratio[i], 1.0f);
  }
}

TEST(Match, SinksStayAsTheyAre) {
  const LayerCase layer = doubled(192, 7);
  const HeadPlan plan = without_copies(192);
  const HeadMerge merged = merged_by("match(sinks=9)", layer, 0, plan);
  EXPECT_EQ(merged.changed.back(), 1) << "the others are fitted";
  for (std::size_t i = 0; i < plan.kept.size(); ++i) {
    if (plan.kept[i] >= 9) continue;
    EXPECT_EQ(merged.mass_ratio[i], 1.0f) << i;
    if (merged.changed[i] == 0) continue;
    for (std::size_t c = 0; c < kWidth; ++c)
      EXPECT_EQ(to_half(merged.values[i * kWidth + c]).bits,
                layer.dense.head(0).values[plan.kept[i] * kWidth + c].bits);
  }
}

Rope some_rope() { return {12, false, {1.0, 0.5, 0.2, 0.1, 0.03, 0.01}, 1.0f}; }

HeadMerge matched(const LayerCase& layer, const HeadPlan& plan, const Rope* rope,
                  const std::int32_t* places = nullptr) {
  HeadView view = view_head(layer, 0);
  view.rope = rope;
  view.places = places;
  return builtin_methods().parse("score=random select=head merge=match").merger->merge(view, plan);
}

void expect_same(const HeadMerge& a, const HeadMerge& b) {
  ASSERT_EQ(a.changed, b.changed);
  for (std::size_t i = 0; i < a.mass_ratio.size(); ++i)
    EXPECT_NEAR(a.mass_ratio[i], b.mass_ratio[i], 2e-3f) << i;
  for (std::size_t i = 0; i < a.values.size(); ++i)
    EXPECT_NEAR(a.values[i], b.values[i], 1e-2f) << i;
}

// Queries that stand where they were read, with RoPE, are those that stand behind the prompt and
// are not turned.
TEST(Match, QueriesAreTurnedToStandBehindThePrompt) {
  constexpr std::size_t kTokens = 192;
  const Rope rope = some_rope();
  const LayerCase original = doubled(kTokens, 8);
  LayerCase at_own = original, behind = original;
  RopeTurn turn(rope);
  for (std::size_t row = 0; row < 2 * kTokens; ++row) {
    turn.set_delta(static_cast<std::int64_t>(row % kTokens));
    turn.apply(at_own.observed.queries.data() + row * kWidth);
    turn.set_delta(kTokens);
    turn.apply(behind.observed.queries.data() + row * kWidth);
  }
  const HeadPlan plan = without_copies(kTokens);
  const HeadMerge found = matched(at_own, plan, &rope);
  EXPECT_EQ(found.changed.back(), 1);
  EXPECT_EQ(found.absorbed.size(), kTokens - plan.kept.size());
  expect_same(found, matched(behind, plan, nullptr));
  EXPECT_NE(found.values, matched(at_own, plan, nullptr).values) << "it makes a difference";
}

// Places that keep all distances change nothing; others do.
TEST(Match, EntriesAreFittedWhereTheyWillStand) {
  constexpr std::size_t kTokens = 192;
  const Rope rope = some_rope();
  const LayerCase layer = doubled(kTokens, 9);
  const HeadPlan plan = without_copies(kTokens);
  std::vector<std::int32_t> moved, compact;
  for (std::size_t t = 0; t < kTokens; ++t) {
    moved.push_back(static_cast<std::int32_t>(t) + 50);
    compact.push_back(static_cast<std::int32_t>(t < kTokens / 2 ? (t + 1) / 2 : t - kTokens / 4));
  }
  const HeadMerge stayed = matched(layer, plan, &rope);
  expect_same(matched(layer, plan, &rope, moved.data()), stayed);
  EXPECT_NE(matched(layer, plan, &rope, compact.data()).values, stayed.values);
}

TEST(Match, FewQueriesAreStillJudged) {
  const LayerCase layer = doubled(192, 1);
  const HeadPlan plan = without_copies(192);
  const HeadMerge merged = merged_by("match(queries=8,gain=0,window=1)", layer, 0, plan);
  EXPECT_EQ(merged.changed.back(), 1);
}

// Unrelated queries and keys with few references: what is held out decides, so that new queries
// lose little where there is nothing to learn.
TEST(Match, NoiseIsNotLearnt) {
  for (const std::uint32_t seed : {1u, 2u, 3u, 4u}) {
    const LayerCase layer =
        make_layer({{1, kWidth}, 1, {0.25f, 0.0f}}, 200, Pattern::kRandom, seed);
    HeadPlan plan;
    for (std::uint32_t t = 0; t < 200; t += 4) plan.kept.push_back(t);
    plan.targets = plan.kept;
    const HeadMerge merged = merged_by("match(queries=8)", layer, 0, plan);
    EXPECT_LT(error_of_new_queries(layer, plan, &merged),
              1.2 * error_of_new_queries(layer, plan, nullptr))
        << seed;
  }
}

}  // namespace
}  // namespace precis
