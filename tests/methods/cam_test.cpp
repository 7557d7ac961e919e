// CaM in one shot: evicted values are added to the kept tokens that follow, at random.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "methods/hashed_uniform.h"
#include "methods/plain_layer.h"

namespace precis {
namespace {

using namespace test;

TEST(Cam, ByHand) {
  // All logits are 0, so earlier tokens have more attention than later ones: probability 1.
  const LayerCase layer = hand_layer({{0}, {0}, {0}, {0}}, {{1}, {2}, {4}, {8}}, {});
  const HeadMerge two = merged_by("cam(share=2)", layer, 0, plan_of({1, 2, 3}));
  EXPECT_EQ(two.changed, (std::vector<std::uint8_t>{1, 1, 0}));
  EXPECT_EQ(two.values[0], 2.5f);
  EXPECT_EQ(two.values[8], 4.5f);
  // Fewer than m follow: they share it.
  const HeadMerge one = merged_by("cam", layer, 0, plan_of({0, 3}));
  EXPECT_EQ(one.changed, (std::vector<std::uint8_t>{0, 1}));
  EXPECT_EQ(one.values[8], 14.0f);
  EXPECT_EQ(merged_by("cam", layer, 0, plan_of({0})).n_dropped, 3u);
}

TEST(Cam, RandomRowsMatchTheFormula) {
  const std::size_t n = 60;
  const std::size_t share = 5;
  const LayerCase layer = make_layer({{2, 16}, 2, {0.2f, 0.0f}}, n, Pattern::kRandom, 22);
  HeadPlan plan;
  for (std::uint32_t t = 2; t < n; t += 1 + t % 4) plan.kept.push_back(t);
  for (std::size_t h = 0; h < 2; ++h) {
    // Of all queries, a token before the kept ones would have more than they, and always merge.
    Row mass(n, 0.0);
    for (std::size_t t = n - 8; t < n; ++t)
      for (std::size_t g = 0; g < 2; ++g) {
        const PlainAttention row = plain_attention(layer, h, g, t);
        for (std::size_t j = 0; j <= t; ++j) mass[j] += row.weights[j];
      }
    std::vector<Row> values;
    for (const std::uint32_t t : plan.kept) values.push_back(value_of(layer, h, t));
    std::size_t n_merged = 0;
    std::size_t n_refused = 0;
    for (std::uint32_t t = 0; t < n; ++t) {
      if (std::binary_search(plan.kept.begin(), plan.kept.end(), t)) continue;
      std::vector<std::size_t> next;
      for (std::size_t i = 0; i < plan.kept.size() && next.size() < share; ++i)
        if (plan.kept[i] > t) next.push_back(i);
      if (next.empty()) continue;
      double mean = 0;
      for (const std::size_t i : next) mean += mass[plan.kept[i]];
      mean /= static_cast<double>(next.size());
      const bool merges = static_cast<double>(hashed_uniform(99, t)) < mass[t] / mean;
      ++(merges ? n_merged : n_refused);
      const Row value = value_of(layer, h, t);
      for (const std::size_t i : next)
        for (std::size_t c = 0; c < 16 && merges; ++c)
          values[i][c] += value[c] / static_cast<double>(next.size());
    }
    EXPECT_GT(n_merged, 0u);
    EXPECT_GT(n_refused, 0u);
    const HeadMerge merged =
        merged_by(concat("cam(window=8,share=", share, ")"), layer, h, plan, 99);
    for (std::size_t i = 0; i < plan.kept.size(); ++i)
      for (std::size_t c = 0; c < 16; ++c)
        EXPECT_NEAR(static_cast<double>(merged.values[i * 16 + c]), values[i][c], 1e-4);
  }
}

TEST(Cam, DrawsDependOnTheSeed) {
  const LayerCase layer = make_layer({{1, 16}, 2, {0.2f, 0.0f}}, 80, Pattern::kRandom, 23);
  HeadPlan plan;
  for (std::uint32_t t = 0; t < 80; t += 3) plan.kept.push_back(t);
  EXPECT_EQ(merged_by("cam(window=8)", layer, 0, plan, 1).values,
            merged_by("cam(window=8)", layer, 0, plan, 1).values);
  EXPECT_NE(merged_by("cam(window=8)", layer, 0, plan, 1).values,
            merged_by("cam(window=8)", layer, 0, plan, 2).values);
}

}  // namespace
}  // namespace precis
