// K-norm: the score is minus the length of the key.
#include <gtest/gtest.h>

#include "methods/plain_layer.h"

namespace precis {
namespace {

using namespace test;

TEST(Knorm, IsMinusTheLength) {
  const LayerCase layer = hand_layer({{3, 4}, {0, 0}, {-1, 2, 2}}, {}, {});
  EXPECT_EQ(scores_of("knorm", layer, 0), (std::vector<float>{-5, 0, -3}));
}

TEST(Knorm, RandomKeysMatchTheFormula) {
  const LayerCase layer = make_layer({{2, 24}, 2, {0.2f, 0.0f}}, 70, Pattern::kRandom, 3);
  for (std::size_t h = 0; h < 2; ++h) {
    const std::vector<float> scores = scores_of("knorm", layer, h);
    for (std::size_t t = 0; t < 70; ++t)
      EXPECT_NEAR(static_cast<double>(scores[t]), -plain_norm(key_of(layer, h, t)), 1e-5);
  }
}

TEST(Knorm, ReadsNoQueriesAndProtectsNothing) {
  const Method method = builtin_methods().parse("knorm");
  EXPECT_TRUE(method.observation(1000).none());
  EXPECT_EQ(method.selector->protection().count(1000), 0u);
}

}  // namespace
}  // namespace precis
