// KVMerger: runs of consecutive tokens with similar keys merge into their most attended kept token.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "methods/plain_layer.h"

namespace precis {
namespace {

using namespace test;

TEST(Kvmerger, ByHand) {
  // Sets {0, 1, 2} and {3, 4}: the cosines of neighbours are 1, 0.8, 0 and 1. Token 1 has the most
  // attention of the kept ones of the first; none of the second is kept.
  const LayerCase layer =
      hand_layer({{2, 0}, {5, 0}, {4, 3}, {0, 0, 2}, {0, 0, 1}},
                 {{1, 0}, {6, 0}, {0, 6}, {9, 9}, {9, 9}}, {{0}, {0}, {0}, {0}, {1}});
  const HeadMerge merged = merged_by("kvmerger(window=1,sinks=0)", layer, 0, plan_of({0, 1}));
  EXPECT_EQ(merged.changed, (std::vector<std::uint8_t>{0, 1}));
  EXPECT_EQ(merged.keys_changed, merged.changed);
  EXPECT_EQ(merged.n_routed, 1u);
  EXPECT_EQ(merged.n_dropped, 2u);
  // ||(5, 0) - (4, 3)||^2 = 10, sigma^2 = 10 / 2: g = exp(-1).
  const double g = std::exp(-1.0);
  const std::size_t at = 8;
  EXPECT_NEAR(static_cast<double>(merged.keys[at]), (5 + 4 * g) / (1 + g), 1e-3);
  EXPECT_NEAR(static_cast<double>(merged.keys[at + 1]), 3 * g / (1 + g), 1e-3);
  EXPECT_NEAR(static_cast<double>(merged.values[at]), 6 / (1 + g), 1e-3);
  EXPECT_NEAR(static_cast<double>(merged.values[at + 1]), 6 * g / (1 + g), 1e-3);
  // With a lower bar for neighbours the set ends all the same; with a higher one token 2 is alone.
  EXPECT_EQ(merged_by("kvmerger(window=1,sinks=0,threshold=0.5)", layer, 0, plan_of({1})).n_routed,
            2u);
  EXPECT_EQ(merged_by("kvmerger(window=1,sinks=0,threshold=0.9)", layer, 0, plan_of({1})).n_routed,
            1u);
  // Sinks are in no set, nor are tokens that may not receive pivots.
  EXPECT_EQ(merged_by("kvmerger(window=1,sinks=2)", layer, 0, plan_of({0, 1})).n_routed, 0u);
  EXPECT_EQ(merged_by("kvmerger(window=1,sinks=0)", layer, 0, {{0, 1}, {0}}).changed,
            (std::vector<std::uint8_t>{1, 0}));
}

TEST(Kvmerger, RandomRowsMatchTheFormula) {
  const std::size_t n = 90;
  const std::size_t width = 8;
  const std::size_t window = 12;
  const double threshold = 0.2;
  const LayerCase layer = make_layer({{2, width}, 2, {0.3f, 0.0f}}, n, Pattern::kRandom, 24);
  HeadPlan plan;
  for (std::uint32_t t = 0; t < n; t += 1 + t % 4) plan.kept.push_back(t);
  plan.targets = plan.kept;
  const auto is_kept = [&](std::size_t t) {
    return std::binary_search(plan.kept.begin(), plan.kept.end(), t);
  };
  for (std::size_t h = 0; h < 2; ++h) {
    Row mass(n, 0.0);
    for (std::size_t t = n - window; t < n; ++t)
      for (std::size_t g = 0; g < 2; ++g) {
        const PlainAttention row = plain_attention(layer, h, g, t);
        for (std::size_t j = 0; j <= t; ++j) mass[j] += row.weights[j];
      }
    const HeadMerge merged = merged_by(
        concat("kvmerger(window=", window, ",threshold=", threshold, ")"), layer, h, plan);
    std::size_t n_sets = 0;
    for (std::size_t begin = 4; begin < n;) {
      std::size_t end = begin + 1;
      while (end < n) {
        const Row a = key_of(layer, h, end - 1);
        const Row b = key_of(layer, h, end);
        if (plain_dot(a, b) / (plain_norm(a) * plain_norm(b)) <= threshold) break;
        ++end;
      }
      std::size_t pivot = n;
      std::vector<std::size_t> members;
      for (std::size_t t = begin; t < end; ++t) {
        if (!is_kept(t)) members.push_back(t);
        if (is_kept(t) && (pivot == n || mass[t] > mass[pivot])) pivot = t;
      }
      if (pivot != n && !members.empty()) {
        ++n_sets;
        const auto distance = [&](std::size_t t) {
          double sum = 0;
          for (std::size_t c = 0; c < width; ++c)
            sum += std::pow(key_of(layer, h, pivot)[c] - key_of(layer, h, t)[c], 2);
          return sum;
        };
        double variance = 0;
        for (const std::size_t t : members)
          variance += distance(t) / static_cast<double>(members.size() + 1);
        Row key = key_of(layer, h, pivot);
        Row value = value_of(layer, h, pivot);
        double total = 1;
        for (const std::size_t t : members) {
          const double g = std::exp(-distance(t) / (2 * variance));
          for (std::size_t c = 0; c < width; ++c) {
            key[c] += g * key_of(layer, h, t)[c];
            value[c] += g * value_of(layer, h, t)[c];
          }
          total += g;
        }
        const auto slot = static_cast<std::size_t>(
            std::find(plan.kept.begin(), plan.kept.end(), pivot) - plan.kept.begin());
        ASSERT_EQ(merged.changed[slot], 1);
        EXPECT_EQ(merged.n_merged[slot], members.size());
        for (std::size_t c = 0; c < width; ++c) {
          EXPECT_NEAR(static_cast<double>(merged.keys[slot * width + c]), key[c] / total, 1e-4);
          EXPECT_NEAR(static_cast<double>(merged.values[slot * width + c]), value[c] / total, 1e-4);
        }
      }
      begin = end;
    }
    EXPECT_GT(n_sets, 3u);
    EXPECT_EQ(std::count(merged.changed.begin(), merged.changed.end(), 1),
              static_cast<std::ptrdiff_t>(n_sets));
  }
}

TEST(Kvmerger, EqualKeysWeighAllAlike) {
  const LayerCase layer = make_layer({{1, 16}, 1, {0.2f, 0.0f}}, 20, Pattern::kEqualKeys, 25);
  const HeadMerge merged = merged_by("kvmerger", layer, 0, plan_of({0, 10}));
  EXPECT_EQ(merged.n_merged[1], 15u);
  double sum = 0;
  for (std::size_t t = 4; t < 20; ++t) sum += value_of(layer, 0, t)[0];
  EXPECT_NEAR(static_cast<double>(merged.values[16]), sum / 16, 1e-4);
}

}  // namespace
}  // namespace precis
