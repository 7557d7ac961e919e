// MergingPress of kvpress: values merge by the similarity of keys, weighed by norms.
#include <gtest/gtest.h>

#include <algorithm>

#include "methods/plain_layer.h"

namespace precis {
namespace {

using namespace test;

// Slot of the kept token whose key has the largest cosine.
std::size_t plain_nearest(const LayerCase& layer, std::size_t head, const HeadPlan& plan,
                          std::size_t token, double* cosine) {
  std::size_t best = plan.kept.size();
  for (std::size_t i = 0; i < plan.kept.size(); ++i) {
    const Row a = key_of(layer, head, token);
    const Row b = key_of(layer, head, plan.kept[i]);
    const double found = plain_dot(a, b) / (plain_norm(a) * plain_norm(b));
    if (best == plan.kept.size() || found > *cosine) {
      best = i;
      *cosine = found;
    }
  }
  return best;
}

TEST(Merging, ByHand) {
  // Token 1 is most like token 0, cosine 0.6; token 3 is opposite to both kept tokens.
  const LayerCase layer =
      hand_layer({{2, 0}, {3, 4}, {0, -1}, {-1, 0.5}}, {{3, 0}, {0, 6}, {7, 7}, {9, 9}}, {});
  const HeadMerge merged = merged_by("merging", layer, 0, plan_of({0, 2}));
  EXPECT_EQ(merged.changed, (std::vector<std::uint8_t>{1, 0}));
  // w = 0.6 * 6 / (6 + 3) = 0.4; v = ((3, 0) + 0.4 (0, 6)) / 1.4.
  EXPECT_NEAR(static_cast<double>(merged.values[0]), 3 / 1.4, 1e-5);
  EXPECT_NEAR(static_cast<double>(merged.values[1]), 2.4 / 1.4, 1e-5);
  EXPECT_EQ(merged.n_routed, 1u);
  EXPECT_EQ(merged.n_dropped, 1u);
  EXPECT_EQ(merged_by("merging(threshold=0.61)", layer, 0, plan_of({0, 2})).n_routed, 0u);
}

TEST(Merging, RandomRowsMatchTheFormula) {
  const std::size_t n = 70;
  const LayerCase layer = make_layer({{2, 24}, 2, {0.2f, 0.0f}}, n, Pattern::kRandom, 18);
  HeadPlan plan;
  for (std::uint32_t t = 0; t < n; t += 1 + t % 4) plan.kept.push_back(t);
  plan.targets = plan.kept;
  for (std::size_t h = 0; h < 2; ++h) {
    const HeadMerge merged = merged_by("merging", layer, h, plan);
    std::vector<Row> sums;
    Row weights(plan.kept.size(), 1.0);
    for (const std::uint32_t t : plan.kept) sums.push_back(value_of(layer, h, t));
    for (std::uint32_t t = 0; t < n; ++t) {
      if (std::binary_search(plan.kept.begin(), plan.kept.end(), t)) continue;
      double cosine = 0;
      const std::size_t slot = plain_nearest(layer, h, plan, t, &cosine);
      const Row value = value_of(layer, h, t);
      const double norm = plain_norm(value);
      const double weight = std::max(cosine, 0.0) * norm /
                            (norm + plain_norm(value_of(layer, h, plan.kept[slot])) + 1e-6);
      for (std::size_t c = 0; c < 24; ++c) sums[slot][c] += weight * value[c];
      weights[slot] += weight;
    }
    for (std::size_t i = 0; i < plan.kept.size(); ++i) {
      EXPECT_EQ(merged.changed[i] != 0, weights[i] > 1);
      EXPECT_EQ(merged.mass_ratio[i], 1.0f);
      if (merged.changed[i] == 0) continue;
      for (std::size_t c = 0; c < 24; ++c)
        EXPECT_NEAR(static_cast<double>(merged.values[i * 24 + c]), sums[i][c] / weights[i], 1e-4);
    }
  }
}

TEST(Merging, OnlyTargetsReceive) {
  const LayerCase layer = make_layer({{1, 16}, 1, {0.2f, 0.0f}}, 30, Pattern::kRandom, 19);
  const HeadMerge merged = merged_by("merging", layer, 0, {{1, 5, 9, 20}, {5, 20}});
  EXPECT_EQ(merged.changed[0], 0);
  EXPECT_EQ(merged.changed[2], 0);
  EXPECT_EQ(merged_by("merging", layer, 0, {{1, 5}, {}}).n_dropped, 28u);
}

}  // namespace
}  // namespace precis
