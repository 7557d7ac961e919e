// KeepKV: votes and moved keys leave the attention output of the query that was seen as it was.
#include <gtest/gtest.h>

#include <algorithm>

#include "methods/plain_layer.h"

namespace precis {
namespace {

using namespace test;

// Softmax output over rows with votes.
Row output_of(const std::vector<Row>& keys, const std::vector<Row>& values, const Row& votes,
              const Row& query, double scale) {
  double largest = -1e300;
  for (const Row& key : keys) largest = std::max(largest, scale * plain_dot(query, key));
  Row out(query.size(), 0.0);
  double total = 0;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const double weight = votes[i] * std::exp(scale * plain_dot(query, keys[i]) - largest);
    for (std::size_t c = 0; c < out.size(); ++c) out[c] += weight * values[i][c];
    total += weight;
  }
  for (double& x : out) x /= total;
  return out;
}

struct Entries {
  std::vector<Row> keys;
  std::vector<Row> values;
  Row votes;
};

Entries dense_of(const LayerCase& layer, std::size_t head) {
  Entries out;
  for (std::size_t t = 0; t < layer.n_tokens; ++t) {
    out.keys.push_back(key_of(layer, head, t));
    out.values.push_back(value_of(layer, head, t));
    out.votes.push_back(1.0);
  }
  return out;
}

Entries merged_of(const LayerCase& layer, std::size_t head, const HeadPlan& plan,
                  const HeadMerge& merged) {
  const std::size_t width = layer.shape.kv.head_dim;
  Entries out;
  for (std::size_t i = 0; i < plan.kept.size(); ++i) {
    Row key = key_of(layer, head, plan.kept[i]);
    Row value = value_of(layer, head, plan.kept[i]);
    for (std::size_t c = 0; c < width && merged.changed[i] != 0; ++c) {
      value[c] = static_cast<double>(merged.values[i * width + c]);
      if (!merged.keys.empty()) key[c] = static_cast<double>(merged.keys[i * width + c]);
    }
    out.keys.push_back(key);
    out.values.push_back(value);
    out.votes.push_back(1.0 + merged.n_merged[i]);
  }
  return out;
}

Row query_of(const LayerCase& layer, std::size_t head, std::size_t token) {
  const std::size_t width = layer.shape.kv.head_dim;
  const float* row = layer.observed.queries.data() + (head * layer.n_tokens + token) * width;
  return Row(row, row + width);
}

// Keys in a few directions with noise, so that near ones are alike, and a last query that gives
// them all logits above 0, where lambda is not singular.
LayerCase alike(std::size_t n, std::uint32_t seed) {
  LayerCase layer = make_layer({{1, 16}, 1, {0.25f, 0.0f}}, n, Pattern::kRandom, seed);
  for (std::size_t t = 0; t < n; ++t)
    for (std::size_t c = 0; c < 16; ++c) {
      Half& x = layer.dense.key_row(0, t)[c];
      x = to_half(0.3f * to_float(x) + (c % 4 == t % 4 ? 3.0f : 0.5f));
    }
  for (std::size_t c = 0; c < 16; ++c)
    layer.observed.queries[(n - 1) * 16 + c] = 0.5f + 0.1f * static_cast<float>(c % 5);
  observe(layer);
  return layer;
}

TEST(Keepkv, TheOutputOfTheQueryIsLeftAsItWas) {
  for (const std::uint32_t seed : {1u, 2u, 3u}) {
    const std::size_t n = 80;
    const LayerCase layer = alike(n, seed);
    HeadPlan plan;
    for (std::uint32_t t = 0; t < n; t += 7) plan.kept.push_back(t);
    plan.targets = plan.kept;
    const Row query = query_of(layer, 0, n - 1);
    const double scale = static_cast<double>(layer.shape.rule.scale);
    const HeadMerge merged = merged_by("keepkv(window=1,threshold=-1)", layer, 0, plan);
    ASSERT_EQ(merged.n_dropped, 0u);
    const Entries before = dense_of(layer, 0);
    const Entries after = merged_of(layer, 0, plan, merged);
    const Row expected = output_of(before.keys, before.values, before.votes, query, scale);
    const Row found = output_of(after.keys, after.values, after.votes, query, scale);
    for (std::size_t c = 0; c < 16; ++c) EXPECT_NEAR(found[c], expected[c], 1e-5);
    // And so is what each entry counts: mass_ratio is the votes.
    for (std::size_t i = 0; i < plan.kept.size(); ++i)
      EXPECT_NEAR(static_cast<double>(merged.mass_ratio[i]), after.votes[i], 1e-4 * after.votes[i]);
    // Without the scale the votes count too much: x ln x is convex, so the logit of the plain mean
    // is above the log of the mean score.
    const HeadMerge mean = merged_by("keepkv(window=1,threshold=-1,keys=mean)", layer, 0, plan);
    const Entries unscaled = merged_of(layer, 0, plan, mean);
    for (std::size_t i = 0; i < plan.kept.size(); ++i)
      EXPECT_GE(plain_dot(query, unscaled.keys[i]), plain_dot(query, after.keys[i]) - 1e-5);
    EXPECT_EQ(mean.values, merged.values);
  }
}

// With mass_ratio for votes, the output is the same whatever became of the keys.
TEST(Keepkv, TheMassRatioMakesUpForKeysThatAreNotMoved) {
  const std::size_t n = 60;
  const LayerCase layer = alike(n, 4);
  HeadPlan plan;
  for (std::uint32_t t = 3; t < n; t += 9) plan.kept.push_back(t);
  plan.targets = plan.kept;
  const Row query = query_of(layer, 0, n - 1);
  const double scale = static_cast<double>(layer.shape.rule.scale);
  const Entries before = dense_of(layer, 0);
  const Row expected = output_of(before.keys, before.values, before.votes, query, scale);
  for (const std::string keys : {"mean", "fixed"}) {
    const HeadMerge merged =
        merged_by("keepkv(window=1,threshold=-1,keys=" + keys + ")", layer, 0, plan);
    EXPECT_EQ(merged.keys.empty(), keys == "fixed");
    Entries after = merged_of(layer, 0, plan, merged);
    for (std::size_t i = 0; i < plan.kept.size(); ++i)
      after.votes[i] = static_cast<double>(merged.mass_ratio[i]);
    const Row found = output_of(after.keys, after.values, after.votes, query, scale);
    for (std::size_t c = 0; c < 16; ++c) EXPECT_NEAR(found[c], expected[c], 1e-5);
  }
}

TEST(Keepkv, DuplicatesMergeWithoutLossForEveryQuery) {
  const LayerCase layer = make_layer({{1, 16}, 1, {0.25f, 0.0f}}, 60, Pattern::kRepeated, 5);
  const HeadPlan plan = plan_of({0, 1, 2, 3, 4});
  for (const std::string keys : {"paper", "mean", "fixed"}) {
    SCOPED_TRACE(keys);
    // All tokens are seen by the same queries.
    const HeadMerge merged = merged_by("keepkv(window=1,keys=" + keys + ")", layer, 0, plan);
    EXPECT_EQ(merged.n_merged, (std::vector<std::uint32_t>(5, 11)));
    const Entries before = dense_of(layer, 0);
    const Entries after = merged_of(layer, 0, plan, merged);
    for (std::size_t token = 0; token < 60; token += 13) {
      const Row query = query_of(layer, 0, token);
      const Row expected = output_of(before.keys, before.values, before.votes, query, 0.25);
      const Row found = output_of(after.keys, after.values, after.votes, query, 0.25);
      for (std::size_t c = 0; c < 16; ++c) EXPECT_NEAR(found[c], expected[c], 1e-4);
    }
  }
}

TEST(Keepkv, ScoresAreMeansOverTheQueriesThatSeeAToken) {
  // Window of 2: the last token is seen by one query. Logits: token 0 ln 1 and ln 3, mean ln 2;
  // token 1 ln 2 and ln 4, mean ln 3; token 2 ln 5 from the last query alone.
  const LayerCase layer =
      hand_layer({{1, 0}, {1, 1}, {1, 0, 1}}, {{6, 0}, {0, 6}, {3, 3}},
                 {{0, 0},
                  {0, std::log(2.0), 0},
                  {std::log(3.0), std::log(4.0) - std::log(3.0), std::log(5.0) - std::log(3.0)}});
  const HeadMerge merged =
      merged_by("keepkv(window=2,threshold=-1,keys=mean)", layer, 0, plan_of({0}));
  // Weights 2 : 3 : 5.
  EXPECT_NEAR(static_cast<double>(merged.values[0]), (2 * 6 + 5 * 3) / 10.0, 5e-3);
  EXPECT_NEAR(static_cast<double>(merged.values[1]), (3 * 6 + 5 * 3) / 10.0, 5e-3);
  EXPECT_NEAR(static_cast<double>(merged.keys[1]), 0.3, 1e-3);
  EXPECT_NEAR(static_cast<double>(merged.keys[2]), 0.5, 1e-3);
  EXPECT_EQ(merged.n_merged[0], 2u);
}

TEST(Keepkv, SingularScalesAreGuarded) {
  // Logits 1 and -1, weighed by e and 1/e: wanted ln((e + 1/e) / 2) = 0.434, plain mean tanh(1) =
  // 0.762; a ratio of 0.57 is in bounds.
  const auto scale_of = [](double first, double second) {
    const LayerCase layer =
        hand_layer({{1, 0}, {1, 1}}, {{1}, {1}}, {{0}, {first, second - first}});
    const HeadMerge merged = merged_by("keepkv(window=1,threshold=-1)", layer, 0, plan_of({0}));
    return static_cast<double>(merged.keys[0]);  // the first channel of both keys is 1
  };
  EXPECT_NEAR(scale_of(1, -1), std::log(std::cosh(1.0)) / std::tanh(1.0), 1e-3);
  EXPECT_NEAR(scale_of(0, 0), 1.0, 1e-6);
  // s of 0.5 and 1.5 have a mean of 1, so the wanted logit is 0 and the key would vanish.
  const double vanishing = scale_of(std::log(0.5), std::log(1.5));
  EXPECT_TRUE(std::abs(vanishing - 0.25) < 1e-6 || std::abs(vanishing - 1) < 1e-6) << vanishing;
  // Wanted just above 0 and the plain mean just above it: bounded.
  for (double x = -3; x <= 3; x += 0.125) {
    const double scale = scale_of(x, -0.9 * x);
    EXPECT_GE(scale, 0.25 - 1e-6);
    EXPECT_LE(scale, 4 + 1e-6);
  }
}

TEST(Keepkv, LessSimilarTokensAreDropped) {
  // Cosines 0.8 and 0.6 to the kept token.
  const LayerCase layer = hand_layer({{5, 0}, {4, 3}, {3, 4}}, {{1}, {2}, {3}}, {});
  EXPECT_EQ(merged_by("keepkv(window=1,threshold=0.79)", layer, 0, plan_of({0})).n_dropped, 1u);
  EXPECT_EQ(merged_by("keepkv(window=1,threshold=0.81)", layer, 0, plan_of({0})).n_dropped, 2u);
  EXPECT_EQ(merged_by("keepkv(window=1,threshold=0.5)", layer, 0, plan_of({0})).n_dropped, 0u);
}

TEST(Keepkv, TheBiasIsTheLogOfTheVotes) {
  const Method method = builtin_methods().parse("keepkv");
  const LayerEntries layer = {{{0, 2}, {7.0f, 1.0f}, {2, 0}}};
  const auto biases = method.compensator->compensate({&layer, 1});
  EXPECT_FLOAT_EQ(biases[0][0][0], static_cast<float>(std::log(3.0)));
  EXPECT_EQ(biases[0][0][1], 0.0f);
}

}  // namespace
}  // namespace precis
