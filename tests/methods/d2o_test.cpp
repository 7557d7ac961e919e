// D2O: keys and values of the more similar evicted tokens merge into the most similar kept key.
#include <gtest/gtest.h>

#include <algorithm>

#include "methods/plain_layer.h"

namespace precis {
namespace {

using namespace test;

// Tokens 0 and 2 are kept. Token 1 is most like token 0, with a cosine of 0.8; token 3, opposite to
// it, and token 4 are most like token 2, with 0 and 0.28. The mean is 0.36.
LayerCase hand_case() {
  return hand_layer({{2, 0}, {4, 3}, {0, 0, 5}, {-6, 8, 0}, {0, 0.96, 0.28}},
                    {{8, 0}, {0, 2}, {1, 1}, {4, 4}, {9, 9}}, {});
}

TEST(D2o, ByHand) {
  const LayerCase layer = hand_case();
  const HeadPlan plan = plan_of({0, 2});
  // Token 1 alone is above the mean.
  const HeadMerge code = merged_by("d2o(sinks=0)", layer, 0, plan);
  EXPECT_EQ(code.changed, (std::vector<std::uint8_t>{1, 0}));
  EXPECT_EQ(code.keys_changed, code.changed);
  EXPECT_EQ(code.n_routed, 1u);
  EXPECT_EQ(code.n_dropped, 2u);
  EXPECT_EQ(code.mass_ratio, (std::vector<float>{1, 1}));
  // ((8, 0) + 0.8 (0, 2)) / 2 and ((2, 0) + 0.8 (4, 3)) / 2
  EXPECT_NEAR(static_cast<double>(code.values[0]), 4.0, 1e-3);
  EXPECT_NEAR(static_cast<double>(code.values[1]), 0.8, 1e-3);
  EXPECT_NEAR(static_cast<double>(code.keys[0]), 2.6, 1e-3);
  EXPECT_NEAR(static_cast<double>(code.keys[1]), 1.2, 1e-3);
  const HeadMerge mean = merged_by("d2o(sinks=0,weights=mean)", layer, 0, plan);
  EXPECT_NEAR(static_cast<double>(mean.keys[0]), 3.0, 1e-3);
  EXPECT_NEAR(static_cast<double>(mean.values[1]), 1.0, 1e-3);
  const HeadMerge exponential = merged_by("d2o(sinks=0,weights=exp)", layer, 0, plan);
  const double e = std::exp(1.0);
  EXPECT_NEAR(static_cast<double>(exponential.values[0]), 8 * e / (e + std::exp(0.8)), 1e-3);
  // As a sink token 0 receives nothing.
  EXPECT_EQ(merged_by("d2o(sinks=1)", layer, 0, plan).changed, (std::vector<std::uint8_t>{0, 1}));
}

TEST(D2o, RandomRowsMatchTheFormula) {
  const std::size_t n = 70;
  const std::size_t width = 24;
  const LayerCase layer = make_layer({{2, width}, 2, {0.2f, 0.0f}}, n, Pattern::kRandom, 21);
  HeadPlan plan;
  for (std::uint32_t t = 0; t < n; t += 1 + t % 4) plan.kept.push_back(t);
  plan.targets = plan.kept;
  for (std::size_t h = 0; h < 2; ++h) {
    std::vector<std::size_t> slots(n, plan.kept.size());
    Row cosines(n, 0.0);
    double sum = 0;
    for (std::uint32_t t = 0; t < n; ++t) {
      if (std::binary_search(plan.kept.begin(), plan.kept.end(), t)) continue;
      cosines[t] = -2;
      for (std::size_t i = 0; i < plan.kept.size(); ++i) {
        const Row a = key_of(layer, h, t);
        const Row b = key_of(layer, h, plan.kept[i]);
        const double cosine = plain_dot(a, b) / (plain_norm(a) * plain_norm(b));
        if (plan.kept[i] < 4 || cosine <= cosines[t]) continue;
        cosines[t] = cosine;
        slots[t] = i;
      }
      sum += cosines[t];
    }
    const double threshold = sum / static_cast<double>(n - plan.kept.size());
    for (const std::string weights : {"cosine", "mean", "exp"}) {
      SCOPED_TRACE(weights);
      const HeadMerge merged = merged_by("d2o(weights=" + weights + ")", layer, h, plan);
      std::size_t n_routed = 0;
      for (std::size_t i = 0; i < plan.kept.size(); ++i) {
        const double own = weights == "exp" ? std::exp(1.0) : 1.0;
        Row key = key_of(layer, h, plan.kept[i]);
        Row value = value_of(layer, h, plan.kept[i]);
        for (std::size_t c = 0; c < width; ++c) {
          key[c] *= own;
          value[c] *= own;
        }
        double total = own;
        std::size_t count = 0;
        for (std::uint32_t t = 0; t < n; ++t) {
          if (slots[t] != i || cosines[t] < threshold) continue;
          const double weight = weights == "mean"  ? 1.0
                                : weights == "exp" ? std::exp(cosines[t])
                                                   : cosines[t];
          for (std::size_t c = 0; c < width; ++c) {
            key[c] += weight * key_of(layer, h, t)[c];
            value[c] += weight * value_of(layer, h, t)[c];
          }
          total += weights == "exp" ? weight : 1.0;
          ++count;
        }
        n_routed += count;
        EXPECT_EQ(merged.n_merged[i], count);
        EXPECT_EQ(merged.changed[i] != 0, count > 0);
        for (std::size_t c = 0; c < width && count > 0; ++c) {
          EXPECT_NEAR(static_cast<double>(merged.keys[i * width + c]), key[c] / total, 1e-4);
          EXPECT_NEAR(static_cast<double>(merged.values[i * width + c]), value[c] / total, 1e-4);
        }
      }
      EXPECT_EQ(merged.n_routed, n_routed);
    }
  }
}

TEST(D2o, EqualKeysAllReachTheirMean) {
  const LayerCase layer = make_layer({{1, 16}, 1, {0.2f, 0.0f}}, 40, Pattern::kEqualKeys, 22);
  const HeadMerge merged = merged_by("d2o", layer, 0, plan_of({0, 5, 9}));
  EXPECT_EQ(merged.n_routed, 37u);
  EXPECT_EQ(merged.n_merged[1], 37u);
}

}  // namespace
}  // namespace precis
