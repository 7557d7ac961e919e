// Finch: attention of the question, each query weighed by the number of tokens before it.
#include <gtest/gtest.h>

#include "methods/plain_layer.h"

namespace precis {
namespace {

using namespace test;

TEST(Finch, ByHand) {
  // Queries of 0 see all alike: token 2 gives 1/3 each, times 2; token 3 gives 1/4 each, times 3.
  const LayerCase layer = hand_layer({{1}, {2}, {3}, {4}}, {}, {{0}, {0}, {0}, {0}});
  const std::vector<float> scores = scores_of("finch(window=2)", layer, 0);
  EXPECT_NEAR(scores[0], (2.0 / 3 + 3.0 / 4) / 2, 1e-6);
  EXPECT_NEAR(scores[1], (2.0 / 3 + 3.0 / 4) / 2, 1e-6);
  EXPECT_NEAR(scores[2], (2.0 / 3 + 3.0 / 4) / 2, 1e-6);
  EXPECT_NEAR(scores[3], 3.0 / 8, 1e-6);
  EXPECT_NEAR(scores_of("finch(window=2,normalise=off)", layer, 0)[0], (1.0 / 3 + 1.0 / 4) / 2,
              1e-6);
}

TEST(Finch, RandomRowsMatchTheFormula) {
  const std::size_t n = 40;
  const LayerCase layer = make_layer({{2, 16}, 3, {0.25f, 0.0f}}, n, Pattern::kRandom, 16);
  for (std::size_t h = 0; h < 2; ++h) {
    Row expected(n, 0.0);
    for (std::size_t t = n - 7; t < n; ++t)
      for (std::size_t g = 0; g < 3; ++g) {
        const PlainAttention row = plain_attention(layer, h, g, t);
        for (std::size_t j = 0; j <= t; ++j)
          expected[j] += row.weights[j] * static_cast<double>(t) / (7 * 3);
      }
    const std::vector<float> scores = scores_of("finch(window=7)", layer, h);
    for (std::size_t j = 0; j < n; ++j)
      EXPECT_NEAR(static_cast<double>(scores[j]), expected[j], 1e-4 * (1e-3 + expected[j]));
  }
}

}  // namespace
}  // namespace precis
