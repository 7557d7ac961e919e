// The weighted mean that mergers share, and the cap on how many tokens a kept one takes in.
#include "methods/value_fold.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "methods/plain_layer.h"

namespace precis {
namespace {

using namespace test;

std::vector<std::uint32_t> tokens_of(const std::vector<Arrival>& arrivals) {
  std::vector<std::uint32_t> tokens;
  for (const Arrival& arrival : arrivals) tokens.push_back(arrival.token);
  return tokens;
}

TEST(CapArrivals, LeavesTheWeightiestOfEverySlot) {
  const std::vector<Arrival> all = {{1, 0, 0.5f}, {2, 1, 0.1f}, {3, 0, 0.9f}, {4, 0, 0.5f},
                                    {5, 1, 0.2f}, {6, 0, 0.7f}, {7, 1, 0.0f}};
  const auto capped = [&](int cap, std::vector<float> ranks = {}) {
    std::vector<Arrival> arrivals = all;
    cap_arrivals(arrivals, 3, cap, ranks);
    return tokens_of(arrivals);
  };
  using Tokens = std::vector<std::uint32_t>;
  EXPECT_EQ(capped(0), tokens_of(all));
  EXPECT_EQ(capped(1), (Tokens{3, 5}));
  EXPECT_EQ(capped(2), (Tokens{2, 3, 5, 6}));
  EXPECT_EQ(capped(3), (Tokens{1, 2, 3, 5, 6, 7}));  // of 1 and 4, which are equal, the earlier
  EXPECT_EQ(capped(4), tokens_of(all));
  EXPECT_EQ(capped(1, {9, 0, 1, 2, 3, 4, 5}), (Tokens{1, 7}));
}

TEST(Fold, DividesByTheGivenTotal) {
  const LayerCase layer =
      hand_layer({{1, 1}, {2, 4}, {5, 5}, {8, 0}}, {{4, 8}, {2, 2}, {7, 7}, {6, 0}}, {});
  HeadView view = view_head(layer, 0);
  const HeadPlan plan = plan_of({0, 2});
  Fold fold = make_fold({2.0f, 1.0f}, {{1, 0, 1.0f}, {3, 0, 1.0f}});
  HeadMerge merged = fold_values(view, plan, fold);
  fold_keys(view, plan, fold, merged);
  EXPECT_EQ(merged.changed, (std::vector<std::uint8_t>{1, 0}));
  EXPECT_EQ(merged.keys_changed, merged.changed);
  EXPECT_EQ(merged.n_merged, (std::vector<std::uint32_t>{2, 0}));
  EXPECT_EQ(merged.n_routed, 2u);
  EXPECT_EQ(merged.n_dropped, 0u);
  // (2 (4, 8) + (2, 2) + (6, 0)) / 4 and (2 (1, 1) + (2, 4) + (8, 0)) / 4
  EXPECT_FLOAT_EQ(merged.values[0], 4.0f);
  EXPECT_FLOAT_EQ(merged.values[1], 4.5f);
  EXPECT_FLOAT_EQ(merged.keys[0], 3.0f);
  EXPECT_FLOAT_EQ(merged.keys[1], 1.5f);
  fold.total[0] = 8.0f;
  EXPECT_FLOAT_EQ(fold_values(view, plan, fold).values[0], 2.0f);
}

TEST(Fold, MeansOfTheLargestHalvesFitInF16) {
  const std::size_t n = 5000;
  const LayerCase layer =
      hand_layer(std::vector<Row>(n, {-65504}), std::vector<Row>(n, {65504}), {});
  HeadView view = view_head(layer, 0);
  std::vector<Arrival> arrivals;
  for (std::uint32_t t = 1; t < n; ++t) arrivals.push_back({t, 0, 1.0f / static_cast<float>(t)});
  const Fold fold = make_fold({1.0f}, std::move(arrivals));
  HeadMerge merged = fold_values(view, plan_of({0}), fold);
  fold_keys(view, plan_of({0}), fold, merged);
  EXPECT_NEAR(static_cast<double>(to_float(to_half(merged.values[0]))), 65504, 32);
  EXPECT_NEAR(static_cast<double>(to_float(to_half(merged.keys[0]))), -65504, 32);
  EXPECT_LE(merged.values[0], kLargestHalf);
  EXPECT_GE(merged.keys[0], -kLargestHalf);
}

// Every merger with a cap: no entry takes in more, and a cap that nothing reaches changes nothing.
TEST(Cap, HoldsInEveryMerger) {
  LayerCase layer = make_layer({{1, 16}, 2, {0.25f, 0.0f}}, 200, Pattern::kRandom, 33);
  // Alike enough for every threshold.
  for (std::size_t t = 0; t < 200; ++t)
    for (std::size_t c = 0; c < 16; ++c) {
      layer.dense.key_row(0, t)[c] = to_half(4.0f + to_float(layer.dense.key_row(0, t)[c]));
      layer.dense.value_row(0, t)[c] = to_half(4.0f + to_float(layer.dense.value_row(0, t)[c]));
    }
  observe(layer);
  HeadPlan plan;
  for (std::uint32_t t = 0; t < 200; t += 12) plan.kept.push_back(t);
  plan.targets = plan.kept;
  std::size_t n_capped = 0;
  const Registry registry = builtin_methods();
  for (const Registry::Stage& stage : registry.stages()) {
    const bool has_cap = std::any_of(stage.fields.begin(), stage.fields.end(),
                                     [](const FieldInfo& field) { return field.name == "cap"; });
    if (stage.kind != StageKind::kMerge || !has_cap) continue;
    SCOPED_TRACE(stage.name);
    ++n_capped;
    const HeadMerge whole = merged_by(stage.name, layer, 0, plan);
    const HeadMerge loose = merged_by(stage.name + "(cap=199)", layer, 0, plan);
    const HeadMerge capped = merged_by(stage.name + "(cap=2)", layer, 0, plan);
    EXPECT_EQ(loose.values, whole.values);
    EXPECT_EQ(loose.keys, whole.keys);
    EXPECT_EQ(loose.mass_ratio, whole.mass_ratio);
    EXPECT_EQ(capped.n_routed + capped.n_dropped, 200 - plan.kept.size());
    std::size_t expected = 0;
    for (std::size_t i = 0; i < plan.kept.size(); ++i) {
      EXPECT_LE(capped.n_merged[i], 2u);
      EXPECT_EQ(capped.n_merged[i], std::min(whole.n_merged[i], 2u));
      expected += capped.n_merged[i];
    }
    EXPECT_GE(capped.n_routed, expected);
    EXPECT_LT(capped.n_routed, whole.n_routed);
  }
  EXPECT_GE(n_capped, 4u);
}

}  // namespace
}  // namespace precis
