#include "eval/divergence.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace precis {
namespace {

TEST(Divergence, AgreesWithTheDefinition) {
  // p = (1/2, 1/4, 1/4), q = (1/4, 1/4, 1/2): KL = 1/2 ln 2 + 0 - 1/4 ln 2.
  const std::vector<float> p = {std::log(2.0f), 0.0f, 0.0f};
  const std::vector<float> q = {5.0f, 5.0f, 5.0f + std::log(2.0f)};
  const Divergence d = compare_logits(p, q);
  EXPECT_NEAR(d.kl, 0.25 * std::log(2.0), 1e-7);
  EXPECT_FALSE(d.same_top);
}

TEST(Divergence, IsZeroForTheSameDistribution) {
  const std::vector<float> p = {1.0f, -3.0f, 400.0f, 399.5f};
  std::vector<float> shifted = p;
  for (float& x : shifted) x += 64.0f;
  EXPECT_NEAR(compare_logits(p, shifted).kl, 0.0, 1e-9);
  EXPECT_EQ(compare_logits(p, p).kl, 0.0);
  EXPECT_TRUE(compare_logits(p, shifted).same_top);
}

TEST(Divergence, StaysFiniteForExtremeLogits) {
  const std::vector<float> p = {0.0f, -30000.0f};
  const std::vector<float> q = {-30000.0f, 0.0f};
  EXPECT_NEAR(compare_logits(p, q).kl, 30000.0, 1.0);
  EXPECT_NEAR(log_probability(q, 0), -30000.0, 1.0);
}

}  // namespace
}  // namespace precis
