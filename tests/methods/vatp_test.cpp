// VATP: accumulated attention times the L1 norm of the value.
#include <gtest/gtest.h>

#include "methods/plain_layer.h"

namespace precis {
namespace {

using namespace test;

TEST(Vatp, ByHand) {
  // All logits are 0: accumulated attention 11/6, 5/6, 2/6; L1 norms 6, 12, 0.
  const LayerCase layer = hand_layer({{0}, {0}, {0}}, {{1, -2, 3}, {-12}, {0}}, {});
  const std::vector<float> scores = scores_of("vatp", layer, 0);
  EXPECT_FLOAT_EQ(scores[0], 11.0f);
  EXPECT_FLOAT_EQ(scores[1], 10.0f);
  EXPECT_EQ(scores[2], 0.0f);
}

TEST(Vatp, RandomRowsMatchTheFormula) {
  const std::size_t n = 45;
  const LayerCase layer = make_layer({{2, 16}, 2, {0.25f, 0.0f}}, n, Pattern::kRandom, 13);
  for (std::size_t h = 0; h < 2; ++h) {
    Row all(n, 0.0), late(n, 0.0);
    for (std::size_t t = 0; t < n; ++t)
      for (std::size_t g = 0; g < 2; ++g) {
        const PlainAttention row = plain_attention(layer, h, g, t);
        for (std::size_t j = 0; j <= t; ++j) {
          all[j] += row.weights[j];
          if (t + 9 >= n) late[j] += row.weights[j];
        }
      }
    const std::vector<float> scores = scores_of("vatp", layer, h);
    const std::vector<float> windowed = scores_of("vatp(window=9)", layer, h);
    for (std::size_t j = 0; j < n; ++j) {
      const double norm = plain_l1(value_of(layer, h, j));
      EXPECT_NEAR(static_cast<double>(scores[j]), all[j] * norm, 1e-3);
      EXPECT_NEAR(static_cast<double>(windowed[j]), late[j] * norm, 1e-3);
    }
  }
}

}  // namespace
}  // namespace precis
