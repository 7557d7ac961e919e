// KeyDiff: the score is minus the cosine to the mean of the normalised keys.
#include <gtest/gtest.h>

#include "methods/plain_layer.h"

namespace precis {
namespace {

using namespace test;

TEST(Keydiff, ByHand) {
  // Directions (1, 0), (1, 0), (0, 1): the anchor is along (2, 1), so the cosines are 2 / sqrt(5)
  // and 1 / sqrt(5), whatever the lengths. A zero key has no direction.
  const LayerCase layer = hand_layer({{7, 0}, {2, 0}, {0, 0}, {0, 5}}, {}, {});
  const std::vector<float> scores = scores_of("keydiff", layer, 0);
  EXPECT_FLOAT_EQ(scores[0], static_cast<float>(-2 / std::sqrt(5.0)));
  EXPECT_FLOAT_EQ(scores[1], static_cast<float>(-2 / std::sqrt(5.0)));
  EXPECT_EQ(scores[2], 0.0f);
  EXPECT_FLOAT_EQ(scores[3], static_cast<float>(-1 / std::sqrt(5.0)));
}

TEST(Keydiff, RandomKeysMatchTheFormula) {
  const LayerCase layer = make_layer({{2, 24}, 2, {0.2f, 0.0f}}, 70, Pattern::kRandom, 4);
  for (std::size_t h = 0; h < 2; ++h) {
    Row anchor(24, 0.0);
    for (std::size_t t = 0; t < 70; ++t) {
      const Row key = key_of(layer, h, t);
      for (std::size_t c = 0; c < 24; ++c) anchor[c] += key[c] / plain_norm(key) / 70;
    }
    const std::vector<float> scores = scores_of("keydiff", layer, h);
    for (std::size_t t = 0; t < 70; ++t) {
      const Row key = key_of(layer, h, t);
      const double cosine = plain_dot(key, anchor) / (plain_norm(key) * plain_norm(anchor));
      EXPECT_NEAR(static_cast<double>(scores[t]), -cosine, 1e-5);
    }
  }
}

}  // namespace
}  // namespace precis
