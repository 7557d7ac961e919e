// TOVA: attention of the last query, one kept set per layer by the mean over heads.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "methods/plain_layer.h"

namespace precis {
namespace {

using namespace test;

TEST(Tova, ByHand) {
  // Logits of the last query: log 1, log 2, log 5 of unnormalised weights 1, 2, 5.
  const LayerCase layer = hand_layer({{0}, {std::log(2.0)}, {std::log(5.0)}}, {}, {{9}, {9}, {1}});
  const std::vector<float> scores = scores_of("tova", layer, 0);
  EXPECT_NEAR(scores[0], 1.0 / 8, 1e-4);  // keys are rounded to f16
  EXPECT_NEAR(scores[1], 2.0 / 8, 1e-4);
  EXPECT_NEAR(scores[2], 5.0 / 8, 1e-4);
}

TEST(Tova, RandomRowsMatchTheFormula) {
  const LayerCase layer = make_layer({{2, 16}, 3, {0.25f, 0.0f}}, 60, Pattern::kRandom, 5);
  for (std::size_t h = 0; h < 2; ++h) {
    Row expected(60, 0.0);
    for (std::size_t g = 0; g < 3; ++g) {
      const PlainAttention last = plain_attention(layer, h, g, 59);
      for (std::size_t t = 0; t < 60; ++t) expected[t] += last.weights[t] / 3;
    }
    const std::vector<float> scores = scores_of("tova", layer, h);
    for (std::size_t t = 0; t < 60; ++t)
      EXPECT_NEAR(static_cast<double>(scores[t]), expected[t], 1e-5);
  }
}

TEST(SelectMean, ByHand) {
  // Sums 9, 10, 14, 12, 0: unlike select=shared, token 3 needs to be no head's own best.
  const std::vector<HeadPlan> plans =
      plans_of("mean(recent=1,sinks=0)", {{9, 1, 7, 6, 0}, {0, 9, 7, 6, 0}}, 3);
  for (const HeadPlan& plan : plans) {
    EXPECT_EQ(plan.kept, (std::vector<std::uint32_t>{2, 3, 4}));
    EXPECT_EQ(plan.targets, plan.kept);
  }
}

TEST(SelectMean, RandomTablesMatchTheDefinition) {
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    const auto scores = draw_scores(3, 40, seed % 2 == 0, seed);
    const std::vector<HeadPlan> plans = plans_of("mean(recent=3,sinks=2)", scores, 15);
    std::vector<std::uint32_t> order(35);
    std::iota(order.begin(), order.end(), 2u);
    const auto mean = [&](std::uint32_t t) {
      return (static_cast<double>(scores[0][t]) + static_cast<double>(scores[1][t]) +
              static_cast<double>(scores[2][t])) /
             3;
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return mean(a) > mean(b); });
    std::vector<std::uint32_t> expected = {0, 1, 37, 38, 39};
    expected.insert(expected.end(), order.begin(), order.begin() + 10);
    std::sort(expected.begin(), expected.end());
    for (const HeadPlan& plan : plans) EXPECT_EQ(plan.kept, expected);
  }
}

}  // namespace
}  // namespace precis
