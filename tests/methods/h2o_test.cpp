// H2O: attention of all queries, summed or averaged over those that see the token.
#include <gtest/gtest.h>

#include "methods/plain_layer.h"

namespace precis {
namespace {

using namespace test;

TEST(H2o, ByHand) {
  // All logits are 0: rows (1), (1/2, 1/2), (1/3, 1/3, 1/3).
  const LayerCase layer = hand_layer({{0}, {0}, {0}}, {}, {});
  const std::vector<float> sums = scores_of("h2o", layer, 0);
  EXPECT_FLOAT_EQ(sums[0], 11.0f / 6);
  EXPECT_FLOAT_EQ(sums[1], 5.0f / 6);
  EXPECT_FLOAT_EQ(sums[2], 2.0f / 6);
  const std::vector<float> means = scores_of("h2o(mean=visible)", layer, 0);
  EXPECT_FLOAT_EQ(means[0], 11.0f / 18);
  EXPECT_FLOAT_EQ(means[1], 5.0f / 12);
  EXPECT_FLOAT_EQ(means[2], 2.0f / 6);
  // Two queries see tokens 0 and 1, one sees token 2.
  const std::vector<float> late = scores_of("h2o(mean=visible,window=2)", layer, 0);
  EXPECT_FLOAT_EQ(late[0], 5.0f / 12);
  EXPECT_FLOAT_EQ(late[1], 5.0f / 12);
  EXPECT_FLOAT_EQ(late[2], 2.0f / 6);
}

TEST(H2o, RandomRowsMatchTheFormula) {
  const std::size_t n = 45;
  const LayerCase layer = make_layer({{2, 16}, 3, {0.25f, 0.0f}}, n, Pattern::kRandom, 12);
  for (std::size_t h = 0; h < 2; ++h) {
    Row sums(n, 0.0);
    for (std::size_t t = 0; t < n; ++t)
      for (std::size_t g = 0; g < 3; ++g) {
        const PlainAttention row = plain_attention(layer, h, g, t);
        for (std::size_t j = 0; j <= t; ++j) sums[j] += row.weights[j];
      }
    const std::vector<float> off = scores_of("h2o", layer, h);
    const std::vector<float> visible = scores_of("h2o(mean=visible)", layer, h);
    for (std::size_t j = 0; j < n; ++j) {
      EXPECT_NEAR(static_cast<double>(off[j]), sums[j], 1e-4);
      EXPECT_NEAR(static_cast<double>(visible[j]), sums[j] / static_cast<double>(n - j), 1e-4);
    }
  }
}

TEST(H2o, AsksForAllQueries) {
  EXPECT_EQ(builtin_methods().parse("h2o").observation(777).n_queries, 777u);
  EXPECT_EQ(builtin_methods().parse("h2o(window=50)").observation(777).n_queries, 50u);
}

}  // namespace
}  // namespace precis
