// LAVa: attention of the window times the head's largest value norm, largest of the group.
#include <gtest/gtest.h>

#include "methods/plain_layer.h"

namespace precis {
namespace {

using namespace test;

TEST(Lava, ByHand) {
  // Rows of the last two queries (1/2, 1/2) and (1/3, 1/3, 1/3); the largest L1 norm is 12, so the
  // scores are 12 / 2 times 5/6, 5/6, 2/6.
  const LayerCase layer = hand_layer({{0}, {0}, {0}}, {{1, -2, 3}, {-12}, {0}}, {});
  const std::vector<float> scores = scores_of("lava(window=2)", layer, 0);
  EXPECT_FLOAT_EQ(scores[0], 5.0f);
  EXPECT_FLOAT_EQ(scores[1], 5.0f);
  EXPECT_FLOAT_EQ(scores[2], 2.0f);
}

TEST(Lava, RandomRowsMatchTheFormula) {
  const std::size_t n = 45;
  const LayerCase layer = make_layer({{2, 16}, 3, {0.25f, 0.0f}}, n, Pattern::kRandom, 14);
  for (std::size_t h = 0; h < 2; ++h) {
    double largest_norm = 0;
    for (std::size_t k = 0; k < n; ++k)
      largest_norm = std::max(largest_norm, plain_l1(value_of(layer, h, k)));
    Row expected(n, 0.0);
    for (std::size_t g = 0; g < 3; ++g) {
      Row mass(n, 0.0);
      for (std::size_t t = n - 8; t < n; ++t) {
        const PlainAttention row = plain_attention(layer, h, g, t);
        for (std::size_t j = 0; j <= t; ++j) mass[j] += row.weights[j];
      }
      for (std::size_t j = 0; j < n; ++j)
        expected[j] = std::max(expected[j], mass[j] * largest_norm / 8);
    }
    const std::vector<float> scores = scores_of("lava(window=8)", layer, h);
    for (std::size_t j = 0; j < n; ++j)
      EXPECT_NEAR(static_cast<double>(scores[j]), expected[j], 1e-4 * (1 + expected[j]));
  }
}

}  // namespace
}  // namespace precis
