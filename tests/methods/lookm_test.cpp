// LOOK-M: keys and values of all evicted tokens merge into the most similar kept key.
#include <gtest/gtest.h>

#include <algorithm>

#include "methods/plain_layer.h"

namespace precis {
namespace {

using namespace test;

TEST(Lookm, ByHand) {
  // Tokens 1 and 2 are most like token 0, with cosines 0.6 and 0.8; token 3 is kept and alone.
  const LayerCase layer =
      hand_layer({{5, 0}, {3, 4}, {4, 0, 3}, {0, 0, 0, 1}}, {{6, 0}, {0, 6}, {3, 3}, {1, 1}}, {});
  const HeadPlan plan = plan_of({0, 3});
  const auto expect = [&](const std::string& mode, double key, double value) {
    SCOPED_TRACE(mode);
    const HeadMerge merged = merged_by("lookm(mode=" + mode + ")", layer, 0, plan);
    EXPECT_EQ(merged.changed, (std::vector<std::uint8_t>{1, 0}));
    EXPECT_EQ(merged.keys_changed, merged.changed);
    EXPECT_EQ(merged.n_merged, (std::vector<std::uint32_t>{2, 0}));
    EXPECT_EQ(merged.n_dropped, 0u);
    EXPECT_NEAR(static_cast<double>(merged.keys[0]), key, 1e-3);
    EXPECT_NEAR(static_cast<double>(merged.values[0]), value, 1e-3);
  };
  expect("average", 12 / 3.0, 9 / 3.0);
  // ((5 + 4 + 4.5) / 3, (6 + 3 + 4.5) / 3)
  expect("pivot", 13.5 / 3, 13.5 / 3);
  // Weights 0.8 and 0.9.
  expect("weighted", (5 + 0.8 * 3 + 0.9 * 4) / 2.7, (6 + 0.9 * 3) / 2.7);
  expect("cosine", (5 + 0.6 * 3 + 0.8 * 4) / 3, (6 + 0.8 * 3) / 3);
}

TEST(Lookm, RandomRowsMatchTheFormula) {
  const std::size_t n = 60;
  const std::size_t width = 24;
  const LayerCase layer = make_layer({{2, width}, 2, {0.2f, 0.0f}}, n, Pattern::kRandom, 23);
  HeadPlan plan;
  for (std::uint32_t t = 1; t < n; t += 1 + t % 5) plan.kept.push_back(t);
  plan.targets = plan.kept;
  std::vector<std::vector<std::pair<std::uint32_t, double>>> arrivals(plan.kept.size());
  for (std::uint32_t t = 0; t < n; ++t) {
    if (std::binary_search(plan.kept.begin(), plan.kept.end(), t)) continue;
    std::size_t best = 0;
    double largest = -2;
    for (std::size_t i = 0; i < plan.kept.size(); ++i) {
      const Row a = key_of(layer, 1, t);
      const Row b = key_of(layer, 1, plan.kept[i]);
      const double cosine = plain_dot(a, b) / (plain_norm(a) * plain_norm(b));
      if (cosine <= largest) continue;
      largest = cosine;
      best = i;
    }
    arrivals[best].emplace_back(t, largest);
  }
  for (const std::string mode : {"average", "pivot", "weighted", "cosine"}) {
    SCOPED_TRACE(mode);
    const HeadMerge merged = merged_by("lookm(mode=" + mode + ")", layer, 1, plan);
    for (std::size_t i = 0; i < plan.kept.size(); ++i) {
      const Row own_key = key_of(layer, 1, plan.kept[i]);
      const Row own_value = value_of(layer, 1, plan.kept[i]);
      Row key = own_key;
      Row value = own_value;
      double total = 1;
      for (const auto& [t, cosine] : arrivals[i]) {
        const Row k = key_of(layer, 1, t);
        const Row v = value_of(layer, 1, t);
        for (std::size_t c = 0; c < width; ++c) {
          const double weight = mode == "weighted" ? (cosine + 1) / 2
                                : mode == "cosine" ? std::max(cosine, 0.0)
                                                   : 1.0;
          key[c] += mode == "pivot" ? (k[c] + own_key[c]) / 2 : weight * k[c];
          value[c] += mode == "pivot" ? (v[c] + own_value[c]) / 2 : weight * v[c];
        }
        total += mode == "weighted" ? (cosine + 1) / 2 : 1.0;
      }
      EXPECT_EQ(merged.changed[i] != 0, !arrivals[i].empty());
      for (std::size_t c = 0; c < width && !arrivals[i].empty(); ++c) {
        EXPECT_NEAR(static_cast<double>(merged.keys[i * width + c]), key[c] / total, 1e-4);
        EXPECT_NEAR(static_cast<double>(merged.values[i * width + c]), value[c] / total, 1e-4);
      }
    }
  }
}

}  // namespace
}  // namespace precis
