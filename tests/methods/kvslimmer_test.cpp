// KVSlimmer: neighbours merge into the kept token before them, keys by the curvature of the output.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "methods/plain_layer.h"

namespace precis {
namespace {

using namespace test;

Row less(const Row& a, const Row& b) {
  Row out;
  for (std::size_t c = 0; c < a.size(); ++c) out.push_back(a[c] - b[c]);
  return out;
}

TEST(Kvslimmer, ByHand) {
  // The last query gives attention 0.2, 0.3, 0.5; o = (0.2, 0.5).
  const LayerCase layer = hand_layer({{1, 0}, {1, 1}, {1, 0, 1}}, {{1, 0}, {0, 0}, {0, 1}},
                                     {{0}, {0}, {std::log(0.2), std::log(1.5), std::log(2.5)}});
  const HeadMerge merged = merged_by("kvslimmer(window=1,sinks=0)", layer, 0, plan_of({0, 2}));
  EXPECT_EQ(merged.changed, (std::vector<std::uint8_t>{1, 0}));
  EXPECT_EQ(merged.keys_changed, merged.changed);
  EXPECT_EQ(merged.mass_ratio, (std::vector<float>{2, 1}));
  EXPECT_NEAR(static_cast<double>(merged.values[0]), 0.5, 1e-6);
  const double h11 = 0.2 * 0.6 * std::hypot(0.8, 0.5);
  const double h22 = 0.3 * 0.4 * std::hypot(0.2, 0.5);
  const double h12 = 0.2 * 0.3 * std::hypot(0.6, 1.0);
  const double a = std::max(h11 - h12, 0.0);
  const double b = std::max(h22 - h12, 0.0);
  EXPECT_NEAR(static_cast<double>(merged.keys[0]), 1.0, 1e-6);
  EXPECT_NEAR(static_cast<double>(merged.keys[1]), b / (a + b), 1e-3);
}

// The formula's derivatives against differences of the attention output itself.
TEST(Kvslimmer, TheCurvaturesAreDerivativesOfTheOutput) {
  const Row logits = {0.3, -0.2, 0.9, 0.1};
  const std::vector<Row> values = {{1, 2, -1}, {0, 1, 3}, {2, -2, 0}, {1, 1, 1}};
  const auto output = [&](double d0, double d1) {
    Row shifted = logits;
    shifted[0] += d0;
    shifted[1] += d1;
    Row out(3, 0.0);
    double total = 0;
    for (const double z : shifted) total += std::exp(z);
    for (std::size_t i = 0; i < 4; ++i)
      for (std::size_t c = 0; c < 3; ++c) out[c] += std::exp(shifted[i]) / total * values[i][c];
    return out;
  };
  double total = 0;
  for (const double z : logits) total += std::exp(z);
  const double a0 = std::exp(logits[0]) / total;
  const double a1 = std::exp(logits[1]) / total;
  const Row o = output(0, 0);
  const double e = 1e-4;
  for (std::size_t c = 0; c < 3; ++c) {
    const double second = (output(e, 0)[c] - 2 * o[c] + output(-e, 0)[c]) / (e * e);
    EXPECT_NEAR(second, a0 * (1 - 2 * a0) * (values[0][c] - o[c]), 1e-6);
    const double mixed =
        (output(e, e)[c] - output(e, -e)[c] - output(-e, e)[c] + output(-e, -e)[c]) / (4 * e * e);
    EXPECT_NEAR(mixed, -a0 * a1 * (values[0][c] + values[1][c] - 2 * o[c]), 1e-6);
  }
}

TEST(Kvslimmer, RandomRowsMatchTheFormula) {
  const std::size_t n = 70;
  const std::size_t width = 24;
  const std::size_t window = 10;
  const LayerCase layer = make_layer({{2, width}, 2, {0.2f, 0.0f}}, n, Pattern::kRandom, 26);
  HeadPlan plan;
  for (std::uint32_t t = 2; t < n; t += 1 + t % 5) plan.kept.push_back(t);
  plan.targets = plan.kept;
  plan.targets.erase(plan.targets.begin() + 5);
  const std::uint32_t closed = plan.kept[5];
  for (std::size_t h = 0; h < 2; ++h) {
    Row mass(n, 0.0);
    double total = 0;
    for (std::size_t t = n - window; t < n; ++t)
      for (std::size_t g = 0; g < 2; ++g) {
        const PlainAttention row = plain_attention(layer, h, g, t);
        for (std::size_t j = 0; j <= t; ++j) mass[j] += row.weights[j];
        total += 1;
      }
    Row output(width, 0.0);
    for (std::size_t t = 0; t < n; ++t)
      for (std::size_t c = 0; c < width; ++c)
        output[c] += mass[t] / total * value_of(layer, h, t)[c];
    const auto bend = [&](std::size_t t) {
      const double a = mass[t] / total;
      return std::abs(a * (1 - 2 * a)) * plain_norm(less(value_of(layer, h, t), output));
    };
    const HeadMerge merged = merged_by(concat("kvslimmer(window=", window, ")"), layer, h, plan);
    std::size_t n_routed = 0;
    for (std::size_t i = 0; i < plan.kept.size(); ++i) {
      const std::size_t end = i + 1 < plan.kept.size() ? plan.kept[i + 1] : n;
      const bool receives = plan.kept[i] >= 4 && plan.kept[i] != closed;
      Row key = key_of(layer, h, plan.kept[i]);
      Row value = value_of(layer, h, plan.kept[i]);
      double attention = mass[plan.kept[i]] / total;
      double curvature = bend(plan.kept[i]);
      std::size_t count = 1;
      for (std::size_t t = plan.kept[i] + 1; t < end && receives; ++t, ++n_routed) {
        const Row other = value_of(layer, h, t);
        Row sum = other;
        for (std::size_t c = 0; c < width; ++c) sum[c] += value[c] - 2 * output[c];
        const double mixed = attention * mass[t] / total * plain_norm(sum);
        double a = std::max(curvature - mixed, 0.0);
        double b = std::max(bend(t) - mixed, 0.0);
        if (a + b == 0) {
          a = static_cast<double>(count);
          b = 1;
        }
        for (std::size_t c = 0; c < width; ++c) {
          key[c] = (a * key[c] + b * key_of(layer, h, t)[c]) / (a + b);
          value[c] =
              (static_cast<double>(count) * value[c] + other[c]) / static_cast<double>(count + 1);
        }
        curvature = (a * a * curvature + b * b * bend(t)) / ((a + b) * (a + b));
        attention += mass[t] / total;
        ++count;
      }
      EXPECT_EQ(merged.n_merged[i] + 1, count);
      EXPECT_EQ(merged.changed[i] != 0, count > 1);
      EXPECT_EQ(merged.mass_ratio[i], static_cast<float>(count));
      for (std::size_t c = 0; c < width && count > 1; ++c) {
        EXPECT_NEAR(static_cast<double>(merged.keys[i * width + c]), key[c], 1e-3);
        EXPECT_NEAR(static_cast<double>(merged.values[i * width + c]), value[c], 1e-4);
      }
    }
    EXPECT_EQ(merged.n_routed, n_routed);
  }
}

TEST(Kvslimmer, ACapTakesTheNearest) {
  const LayerCase layer = make_layer({{1, 16}, 1, {0.2f, 0.0f}}, 30, Pattern::kRandom, 27);
  const HeadMerge merged = merged_by("kvslimmer(cap=2)", layer, 0, plan_of({5, 20}));
  EXPECT_EQ(merged.n_merged, (std::vector<std::uint32_t>{2, 2}));
  double sum = 0;
  for (std::size_t t = 5; t < 8; ++t) sum += value_of(layer, 0, t)[0];
  EXPECT_NEAR(static_cast<double>(merged.values[0]), sum / 3, 1e-4);
}

}  // namespace
}  // namespace precis
