// WeightedKV in one shot: evicted values go to the next kept token, weighed by attention.
#include <gtest/gtest.h>

#include <algorithm>

#include "methods/plain_layer.h"

namespace precis {
namespace {

using namespace test;

TEST(Weightedkv, ByHand) {
  // All logits are 0: accumulated attention 25/12, 13/12, 7/12, 3/12.
  const LayerCase layer = hand_layer({{0}, {0}, {0}, {0}}, {{1}, {2}, {4}, {8}}, {});
  const HeadMerge merged = merged_by("weightedkv", layer, 0, plan_of({2}));
  EXPECT_NEAR(static_cast<double>(merged.values[0]), (25.0 + 2 * 13 + 4 * 7) / (25 + 13 + 7), 1e-5);
  EXPECT_EQ(merged.n_routed, 2u);
  EXPECT_EQ(merged.n_dropped, 1u);  // nothing is kept after the last token
  EXPECT_EQ(merged_by("weightedkv", layer, 0, plan_of({0, 3})).changed,
            (std::vector<std::uint8_t>{0, 1}));
}

TEST(Weightedkv, RandomRowsMatchThePapersRuleFromLeftToRight) {
  const std::size_t n = 50;
  const LayerCase layer = make_layer({{2, 16}, 2, {0.2f, 0.0f}}, n, Pattern::kRandom, 21);
  HeadPlan plan;
  for (std::uint32_t t = 2; t < n; t += 1 + t % 4) plan.kept.push_back(t);
  plan.kept.push_back(n - 1);
  plan.kept.erase(std::unique(plan.kept.begin(), plan.kept.end()), plan.kept.end());
  for (std::size_t h = 0; h < 2; ++h) {
    Row mass(n, 0.0);
    for (std::size_t t = 0; t < n; ++t)
      for (std::size_t g = 0; g < 2; ++g) {
        const PlainAttention row = plain_attention(layer, h, g, t);
        for (std::size_t j = 0; j <= t; ++j) mass[j] += row.weights[j];
      }
    std::vector<Row> values;
    for (std::size_t t = 0; t < n; ++t) values.push_back(value_of(layer, h, t));
    for (std::uint32_t t = 0; t + 1 < n; ++t) {
      if (std::binary_search(plan.kept.begin(), plan.kept.end(), t)) continue;
      for (std::size_t c = 0; c < 16; ++c)
        values[t + 1][c] =
            (mass[t] * values[t][c] + mass[t + 1] * values[t + 1][c]) / (mass[t] + mass[t + 1]);
      mass[t + 1] += mass[t];
    }
    const HeadMerge merged = merged_by("weightedkv", layer, h, plan);
    for (std::size_t i = 0; i < plan.kept.size(); ++i)
      for (std::size_t c = 0; c < 16 && merged.changed[i] != 0; ++c)
        EXPECT_NEAR(static_cast<double>(merged.values[i * 16 + c]), values[plan.kept[i]][c], 1e-4);
  }
}

}  // namespace
}  // namespace precis
