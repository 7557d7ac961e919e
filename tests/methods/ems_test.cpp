// EMS: global and local attention in balance; redundant tokens merge by attention.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "methods/plain_layer.h"

namespace precis {
namespace {

using namespace test;

Row mass_of(const LayerCase& layer, std::size_t head, std::size_t window) {
  Row mass(layer.n_tokens, 0.0);
  for (std::size_t t = layer.n_tokens - window; t < layer.n_tokens; ++t)
    for (std::size_t g = 0; g < layer.shape.group; ++g) {
      const PlainAttention row = plain_attention(layer, head, g, t);
      for (std::size_t j = 0; j <= t; ++j) mass[j] += row.weights[j];
    }
  return mass;
}

double cosine_of(const Row& a, const Row& b) {
  return plain_dot(a, b) / (plain_norm(a) * plain_norm(b));
}

TEST(Ems, ScoresAreSharesOfGlobalAndLocalAttention) {
  const std::size_t n = 50;
  const LayerCase layer = make_layer({{2, 24}, 2, {0.2f, 0.0f}}, n, Pattern::kRandom, 29);
  for (const double local : {0.0, 0.25, 1.0}) {
    const std::vector<float> scores =
        scores_of(concat("ems(local=", local, ",window=6)"), layer, 1);
    const Row all = mass_of(layer, 1, n);
    const Row last = mass_of(layer, 1, 6);
    double mean = 0;
    for (std::size_t t = 0; t < n; ++t) {
      // Every query gives 1 in total.
      const double expected =
          (1 - local) * all[t] / (2.0 * n / n) + local * last[t] / (2.0 * 6 / n);
      EXPECT_NEAR(static_cast<double>(scores[t]), expected, 1e-4 * (1 + expected));
      mean += static_cast<double>(scores[t]) / n;
    }
    EXPECT_NEAR(mean, 1.0, 1e-4);
  }
}

TEST(Ems, ByHand) {
  // The last query gives attention 1 : 3 : 4 : 1 : 1/4. Token 1 is most like token 0: cosine 0.8 of
  // keys and 0.6 of values, product 0.48. Token 3 has no value in common, and token 4's key and
  // value are both opposite.
  const LayerCase layer = hand_layer({{2, 0}, {4, 3}, {0, 0, 1}, {1, 0}, {-1, 0, -1}},
                                     {{5, 0}, {3, 4}, {0, 0, 1}, {0, 2}, {-5, 0, -1}},
                                     {{0}, {0}, {0}, {0}, {0, std::log(3.0) / 3, std::log(4.0)}});
  const Row weights = plain_attention(layer, 0, 0, 4).weights;
  const HeadPlan plan = plan_of({0, 2});
  const HeadMerge merged =
      merged_by("ems(window=1,sinks=0,irrelevant=0,threshold=0.4)", layer, 0, plan);
  EXPECT_EQ(merged.changed, (std::vector<std::uint8_t>{1, 0}));
  EXPECT_EQ(merged.keys_changed, merged.changed);
  EXPECT_EQ(merged.n_routed, 1u);
  EXPECT_EQ(merged.mass_ratio, (std::vector<float>{1, 1}));
  EXPECT_NEAR(weights[1] / weights[0], 3.0, 1e-3);
  // Weights 1/4 and 3/4. Values (5 + 9, 12) / 4; unit keys (1 + 2.4, 1.8) / 4; norms (2 + 15) / 4.
  EXPECT_NEAR(static_cast<double>(merged.values[0]), 3.5, 1e-3);
  EXPECT_NEAR(static_cast<double>(merged.values[1]), 3.0, 1e-3);
  const double scale = 17 / 4.0 / std::hypot(3.4, 1.8);
  EXPECT_NEAR(static_cast<double>(merged.keys[0]), 3.4 * scale, 1e-3);
  EXPECT_NEAR(static_cast<double>(merged.keys[1]), 1.8 * scale, 1e-3);
  EXPECT_EQ(merged_by("ems(window=1,sinks=0,irrelevant=0,threshold=0.5)", layer, 0, plan).n_routed,
            0u);
}

TEST(Ems, TokensWithTheLeastAttentionAreIrrelevant) {
  // Attention 0.5 of the kept token, and 0.1, 0.15, 0.05 and 0.2: shares of 0.05, 0.15 and 0.3 go
  // together.
  const LayerCase layer = hand_layer(
      {{1, 1}, {1, 0, 1}, {1, 0, 0, 1}, {1, 0, 0, 0, 1}, {1, 0, 0, 0, 0, 1}},
      std::vector<Row>(5, {1}),
      {{0}, {0}, {0}, {0}, {0, std::log(10.0), std::log(2.0), std::log(3.0), 0, std::log(4.0)}});
  const auto n_routed = [&](double irrelevant) {
    return merged_by(concat("ems(window=1,sinks=0,threshold=0.1,irrelevant=", irrelevant, ")"),
                     layer, 0, plan_of({0}))
        .n_routed;
  };
  EXPECT_EQ(n_routed(0), 4u);
  EXPECT_EQ(n_routed(0.04), 4u);
  EXPECT_EQ(n_routed(0.06), 3u);
  EXPECT_EQ(n_routed(0.16), 2u);
  EXPECT_EQ(n_routed(0.31), 1u);
  EXPECT_EQ(n_routed(1), 0u);
}

TEST(Ems, RandomRowsMatchTheFormula) {
  const std::size_t n = 80;
  const std::size_t width = 8;
  const LayerCase layer = make_layer({{2, width}, 2, {0.3f, 0.0f}}, n, Pattern::kRandom, 30);
  HeadPlan plan;
  for (std::uint32_t t = 0; t < n; t += 1 + t % 4) plan.kept.push_back(t);
  plan.targets = plan.kept;
  for (std::size_t h = 0; h < 2; ++h) {
    const Row mass = mass_of(layer, h, 10);
    std::vector<std::size_t> evicted;
    for (std::size_t t = 0; t < n; ++t)
      if (!std::binary_search(plan.kept.begin(), plan.kept.end(), t)) evicted.push_back(t);
    std::sort(evicted.begin(), evicted.end(),
              [&](std::size_t a, std::size_t b) { return mass[a] < mass[b]; });
    double lost = 0;
    std::size_t n_irrelevant = 0;
    while (n_irrelevant < evicted.size() && lost + mass[evicted[n_irrelevant]] <= 0.05 * 20)
      lost += mass[evicted[n_irrelevant++]];
    EXPECT_GT(n_irrelevant, 0u);
    std::vector<std::vector<std::size_t>> members(plan.kept.size());
    for (std::size_t k = n_irrelevant; k < evicted.size(); ++k) {
      const std::size_t t = evicted[k];
      std::size_t best = 0;
      double largest = -2;
      for (std::size_t i = 0; i < plan.kept.size(); ++i) {
        const double cosine = cosine_of(key_of(layer, h, t), key_of(layer, h, plan.kept[i]));
        if (plan.kept[i] < 4 || cosine <= largest) continue;
        largest = cosine;
        best = i;
      }
      const double values = cosine_of(value_of(layer, h, t), value_of(layer, h, plan.kept[best]));
      if (largest > 0 && values > 0 && largest * values >= 0.1) members[best].push_back(t);
    }
    const HeadMerge merged =
        merged_by("ems(window=10,irrelevant=0.05,threshold=0.1)", layer, h, plan);
    std::size_t n_routed = 0;
    for (std::size_t i = 0; i < plan.kept.size(); ++i) {
      n_routed += members[i].size();
      EXPECT_EQ(merged.n_merged[i], members[i].size());
      if (members[i].empty()) continue;
      members[i].push_back(plan.kept[i]);
      double total = 0;
      double norm = 0;
      Row direction(width, 0.0);
      Row value(width, 0.0);
      for (const std::size_t t : members[i]) {
        total += mass[t];
        norm += mass[t] * plain_norm(key_of(layer, h, t));
        for (std::size_t c = 0; c < width; ++c) {
          direction[c] += mass[t] * key_of(layer, h, t)[c] / plain_norm(key_of(layer, h, t));
          value[c] += mass[t] * value_of(layer, h, t)[c];
        }
      }
      for (std::size_t c = 0; c < width; ++c) {
        EXPECT_NEAR(static_cast<double>(merged.values[i * width + c]), value[c] / total, 1e-3);
        EXPECT_NEAR(static_cast<double>(merged.keys[i * width + c]),
                    norm / total * direction[c] / plain_norm(direction), 1e-3);
      }
    }
    EXPECT_EQ(merged.n_routed, n_routed);
    EXPECT_GT(n_routed, 5u);
  }
}

}  // namespace
}  // namespace precis
