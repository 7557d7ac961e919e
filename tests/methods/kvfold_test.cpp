// kvfold: values and mass of evicted tokens folded into the kept token with the most similar key.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "methods/plain_layer.h"

namespace precis {
namespace {

using namespace test;

TEST(Kvfold, ByHand) {
  // The last query's weights are 1 : 2 : 1 for tokens 0, 1, 2. Token 1 is most like token 0, with
  // twice its mass: v = ((3, 0) + 2 (0, 6)) / 3, R = 3.
  const LayerCase layer = hand_layer({{1, 0}, {1, 1, 0}, {0, 0, 1}}, {{3, 0}, {0, 6}, {1, 1}},
                                     {{0}, {0}, {0, std::log(2.0)}});
  const HeadMerge merged = merged_by("kvfold(window=1,sinks=0)", layer, 0, plan_of({0, 2}));
  EXPECT_EQ(merged.changed, (std::vector<std::uint8_t>{1, 0}));
  EXPECT_NEAR(static_cast<double>(merged.values[0]), 1.0, 1e-4);
  EXPECT_NEAR(static_cast<double>(merged.values[1]), 4.0, 1e-4);
  EXPECT_NEAR(static_cast<double>(merged.mass_ratio[0]), 3.0, 1e-4);
  EXPECT_EQ(merged.mass_ratio[1], 1.0f);
  // As a sink, token 0 receives nothing: token 1 goes to token 2.
  const HeadMerge shielded = merged_by("kvfold(window=1,sinks=1)", layer, 0, plan_of({0, 2}));
  EXPECT_EQ(shielded.changed, (std::vector<std::uint8_t>{0, 1}));
}

TEST(Kvfold, RandomRowsMatchTheFormula) {
  const std::size_t n = 70;
  const std::size_t window = 10;
  const LayerCase layer = make_layer({{2, 24}, 2, {0.2f, 0.0f}}, n, Pattern::kRandom, 20);
  HeadPlan plan;
  for (std::uint32_t t = 0; t < n; t += 1 + t % 4) plan.kept.push_back(t);
  plan.targets = plan.kept;
  for (std::size_t h = 0; h < 2; ++h) {
    Row mass(n, 0.0);
    for (std::size_t t = n - window; t < n; ++t)
      for (std::size_t g = 0; g < 2; ++g) {
        const PlainAttention row = plain_attention(layer, h, g, t);
        for (std::size_t j = 0; j <= t; ++j) mass[j] += row.weights[j];
      }
    std::vector<Row> sums;
    Row weights(plan.kept.size(), 1.0);
    for (const std::uint32_t t : plan.kept) sums.push_back(value_of(layer, h, t));
    for (std::uint32_t t = 0; t < n; ++t) {
      if (std::binary_search(plan.kept.begin(), plan.kept.end(), t)) continue;
      std::size_t best = 0;
      double largest = -2;
      for (std::size_t i = 0; i < plan.kept.size(); ++i) {
        const Row a = key_of(layer, h, t);
        const Row b = key_of(layer, h, plan.kept[i]);
        const double cosine = plain_dot(a, b) / (plain_norm(a) * plain_norm(b));
        if (plan.kept[i] < 4 || cosine <= largest) continue;
        largest = cosine;
        best = i;
      }
      const double weight = std::exp(std::log(mass[t]) - std::log(mass[plan.kept[best]]));
      const Row value = value_of(layer, h, t);
      for (std::size_t c = 0; c < 24; ++c) sums[best][c] += weight * value[c];
      weights[best] += weight;
    }
    const HeadMerge merged = merged_by(concat("kvfold(window=", window, ")"), layer, h, plan);
    for (std::size_t i = 0; i < plan.kept.size(); ++i) {
      EXPECT_NEAR(static_cast<double>(merged.mass_ratio[i]), weights[i], 1e-3 * weights[i]);
      for (std::size_t c = 0; c < 24 && merged.changed[i] != 0; ++c)
        EXPECT_NEAR(static_cast<double>(merged.values[i * 24 + c]), sums[i][c] / weights[i], 1e-3);
    }
    EXPECT_EQ(merged.n_dropped, 0u);
  }
}

TEST(Kvfold, WeighsByTheMethodsOwnScore) {
  // No queries are read: token 1, with a score of 6 against 2, weighs three times token 0, and
  // token 3, without one, next to nothing.
  const LayerCase layer =
      hand_layer({{1, 0}, {1, 1, 0}, {0, 0, 1}, {0, 0, 2}}, {{4, 0}, {0, 8}, {1, 1}, {5, 5}}, {});
  const Method method =
      builtin_methods().parse("score=random select=head merge=kvfold(weight=score,sinks=0)");
  EXPECT_EQ(method.merger->queries_needed(100), 0u);
  HeadView view = view_head(layer, 0);
  const std::vector<float> scores = {2, 6, 1, -1};
  view.scores = scores.data();
  const HeadMerge merged = method.merger->merge(view, plan_of({0, 2}));
  EXPECT_NEAR(static_cast<double>(merged.values[0]), 1.0, 1e-4);
  EXPECT_NEAR(static_cast<double>(merged.values[1]), 6.0, 1e-4);
  EXPECT_NEAR(static_cast<double>(merged.mass_ratio[0]), 4.0, 1e-4);
  EXPECT_EQ(merged.mass_ratio[1], 1.0f);
}

TEST(Kvfold, AWeightIsAtMostTheExponentialOfThirty) {
  // All attention of the last query is on the evicted token.
  const LayerCase layer =
      hand_layer({{1, 0}, {1, 100}, {0, 1}}, {{1}, {2}, {3}}, {{0}, {0}, {0, 10}});
  const HeadMerge merged = merged_by("kvfold(window=1,sinks=0)", layer, 0, plan_of({0}));
  EXPECT_NEAR(std::log(static_cast<double>(merged.mass_ratio[0])), 30.0, 0.01);
}

TEST(Kvfold, TheBiasIsTheLogOfTheRatio) {
  const Method method = builtin_methods().parse("kvfold");
  const LayerEntries layer = {{{0, 2}, {3.0f, 1.0f}, {2, 0}}};
  const auto biases = method.compensator->compensate({&layer, 1});
  EXPECT_FLOAT_EQ(biases[0][0][0], static_cast<float>(std::log(3.0)));
  EXPECT_EQ(biases[0][0][1], 0.0f);
}

}  // namespace
}  // namespace precis
