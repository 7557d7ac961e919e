// Scissorhands: how often a token's attention was below the mean.
#include <gtest/gtest.h>

#include "methods/plain_layer.h"

namespace precis {
namespace {

using namespace test;

TEST(Scissorhands, ByHand) {
  // Weights 1 : 3 for token 1 and 1 : 3 : 1 for token 2, which come to 1/4, 3/4 against a mean of
  // 1/2, and 1/5, 3/5, 1/5 against 1/3: token 0 is below twice, token 2 once.
  const LayerCase layer = hand_layer({{0}, {1}, {0}}, {}, {{0}, {std::log(3.0)}, {std::log(3.0)}});
  const std::vector<float> scores = scores_of("scissorhands(window=2)", layer, 0);
  EXPECT_EQ(scores, (std::vector<float>{-1, 0, -0.5f}));
  const std::vector<float> means = scores_of("scissorhands(window=2,form=mean)", layer, 0);
  EXPECT_NEAR(static_cast<double>(means[0]), (0.25 + 0.2) / 2, 1e-4);
  EXPECT_NEAR(static_cast<double>(means[1]), (0.75 + 0.6) / 2, 1e-4);
}

TEST(Scissorhands, RandomRowsMatchTheFormula) {
  const std::size_t n = 60;
  const LayerCase layer = make_layer({{2, 16}, 3, {0.25f, 0.0f}}, n, Pattern::kRandom, 17);
  for (std::size_t h = 0; h < 2; ++h) {
    Row below(n, 0.0), mass(n, 0.0);
    for (std::size_t t = n - 10; t < n; ++t)
      for (std::size_t g = 0; g < 3; ++g) {
        const PlainAttention row = plain_attention(layer, h, g, t);
        for (std::size_t j = 0; j <= t; ++j) {
          below[j] += row.weights[j] < 1.0 / static_cast<double>(t + 1) ? 1 : 0;
          mass[j] += row.weights[j];
        }
      }
    const std::vector<float> counts = scores_of("scissorhands(window=10)", layer, h);
    const std::vector<float> means = scores_of("scissorhands(window=10,form=mean)", layer, h);
    for (std::size_t j = 0; j < n; ++j) {
      EXPECT_FLOAT_EQ(counts[j], static_cast<float>(-below[j] / 30));
      EXPECT_NEAR(static_cast<double>(means[j]), mass[j] / 30, 1e-5);
    }
  }
}

}  // namespace
}  // namespace precis
