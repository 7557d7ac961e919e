// OBCache: closed forms of the change of the window's outputs.
#include <gtest/gtest.h>

#include "methods/plain_layer.h"

namespace precis {
namespace {

using namespace test;

TEST(Obcache, ByHand) {
  // The last query's logits are 0 and 2 ln 2 over keys 0 and 1, so A = (1/5, 4/5); values (5, 0)
  // and (0, 5): o = (1, 4). With Z = (0, z): value (1/25) 25 = 1 and (16/25) 25 = 16; key 0 and
  // (16/25) z^2 ||(-1, 1)||^2; joint 1 + 0 and 16 + key + 2 (16/25) z (25 - 20).
  const double z = std::log(4.0);
  const LayerCase layer = hand_layer({{0}, {1}}, {{5, 0}, {0, 5}}, {{0}, {z}});
  const auto near = [&](const std::string& kind, double first, double second) {
    const std::vector<float> scores =
        scores_of("obcache(window=1,pool=1,kind=" + kind + ")", layer, 0);
    EXPECT_NEAR(static_cast<double>(scores[0]), first, 1e-4);
    EXPECT_NEAR(static_cast<double>(scores[1]), second, 1e-4);
  };
  const double key = 16.0 / 25 * z * z * 2;
  near("value", 1, 16);
  near("key", 0, key);
  near("joint", 1, 16 + key + 2 * 16.0 / 25 * z * 5);
}

TEST(Obcache, RandomRowsMatchTheFormulas) {
  const std::size_t n = 50;
  const LayerCase layer = make_layer({{2, 16}, 3, {0.25f, 0.0f}}, n, Pattern::kRandom, 11);
  for (std::size_t h = 0; h < 2; ++h) {
    Row value(n, 0.0), key(n, 0.0), joint(n, 0.0);
    for (std::size_t t = n - 6; t < n; ++t)
      for (std::size_t g = 0; g < 3; ++g) {
        const PlainAttention row = plain_attention(layer, h, g, t);
        for (std::size_t p = 0; p <= t; ++p) {
          const Row v = value_of(layer, h, p);
          Row difference = v;
          for (std::size_t c = 0; c < 16; ++c) difference[c] -= row.output[c];
          const double a = row.weights[p];
          const double z = row.logits[p];
          value[p] += a * a * plain_dot(v, v);
          key[p] += std::pow(a * z, 2) * plain_dot(difference, difference);
          joint[p] += 2 * a * a * z * (plain_dot(v, v) - plain_dot(v, row.output));
        }
      }
    for (std::size_t p = 0; p < n; ++p) joint[p] += value[p] + key[p];
    const auto compare = [&](const std::string& kind, const Row& expected) {
      const std::vector<float> scores =
          scores_of("obcache(window=6,pool=3,kind=" + kind + ")", layer, h);
      for (std::size_t p = 0; p < n; ++p) {
        const double pooled =
            ((p > 0 ? expected[p - 1] : 0) + expected[p] + (p + 1 < n ? expected[p + 1] : 0)) / 3;
        EXPECT_NEAR(static_cast<double>(scores[p]), pooled, 1e-4 * (1 + std::abs(pooled)));
      }
    };
    compare("value", value);
    compare("key", key);
    compare("joint", joint);
  }
}

}  // namespace
}  // namespace precis
