// What every merger promises, with every word of its options: merged rows that fit in f16, ratios
// of at least 1, every evicted token accounted for.
#include <gtest/gtest.h>

#include <algorithm>

#include "methods/plain_layer.h"

namespace precis {
namespace {

using namespace test;

// merge=NAME, and merge=NAME(OPTION=WORD) for all words.
std::vector<std::string> all_mergers() {
  std::vector<std::string> out;
  const Registry registry = builtin_methods();
  for (const Registry::Stage& stage : registry.stages()) {
    if (stage.kind != StageKind::kMerge) continue;
    out.push_back(stage.name);
    for (const FieldInfo& field : stage.fields) {
      if (field.domain.find('|') == std::string::npos) continue;
      for (std::size_t at = 0; at <= field.domain.size();) {
        const std::size_t end = std::min(field.domain.find('|', at), field.domain.size());
        out.push_back(stage.name + "(" + field.name + "=" + field.domain.substr(at, end - at) +
                      ")");
        at = end + 1;
      }
    }
  }
  return out;
}

bool fits(const std::vector<float>& rows, const std::vector<std::uint8_t>& changed,
          std::size_t width) {
  for (std::size_t i = 0; i < changed.size(); ++i)
    for (std::size_t c = 0; c < width && changed[i] != 0; ++c)
      if (!std::isfinite(to_float(to_half(rows[i * width + c])))) return false;
  return true;
}

TEST(Mergers, StayFiniteAndCountEveryToken) {
  const std::size_t n = 120;
  const HeadPlan plan = {{0, 2, 3, 5, 30, 31, 60, 90, 119}, {2, 3, 5, 30, 60, 90, 119}};
  for (const std::string& stage : all_mergers())
    for (const Pattern pattern : {Pattern::kRandom, Pattern::kZeros, Pattern::kEqualKeys,
                                  Pattern::kHuge, Pattern::kRepeated}) {
      SCOPED_TRACE(stage + " on " + pattern_name(pattern));
      LayerCase layer = make_layer({{1, 16}, 2, {0.25f, 0.0f}}, n, pattern, 34);
      // The largest of one sign and of both.
      for (std::size_t c = 0; c < 16 && pattern == Pattern::kHuge; ++c)
        for (std::size_t t = 0; t < 60; ++t) layer.dense.key_row(0, t)[c] = to_half(65504.0f);
      observe(layer);
      const Method method = builtin_methods().parse("score=random select=head merge=" + stage);
      HeadView view = view_head(layer, 0);
      std::vector<float> scores(n);
      for (std::size_t t = 0; t < n; ++t)
        scores[t] = t % 3 == 0 ? 0.0f : static_cast<float>(t) - 50;
      view.scores = scores.data();
      const HeadMerge merged = method.merger->merge(view, plan);
      ASSERT_EQ(merged.changed.size(), plan.kept.size());
      EXPECT_TRUE(fits(merged.values, merged.changed, 16));
      EXPECT_TRUE(fits(merged.keys, merged.keys_changed, 16));
      EXPECT_TRUE(merged.keys_changed.empty() || merged.keys_changed == merged.changed);
      const bool fitted = stage.rfind("match", 0) == 0;  // all entries, and weights below 1 too
      for (const float ratio : merged.mass_ratio) {
        EXPECT_TRUE(std::isfinite(ratio));
        EXPECT_GE(ratio, fitted ? 0.0497f : 1.0f);  // exp(-3)
      }
      EXPECT_EQ(merged.n_routed + merged.n_dropped, n - plan.kept.size());
      for (std::size_t i = 0; i < merged.absorbed.size(); ++i) {
        EXPECT_TRUE(i == 0 || merged.absorbed[i - 1] < merged.absorbed[i]);
        EXPECT_FALSE(std::ranges::binary_search(plan.kept, merged.absorbed[i]));
        EXPECT_LT(merged.absorbed[i], n);
      }
      const auto is_set = [](std::uint8_t flag) { return flag != 0; };
      EXPECT_EQ(merged.absorbed.empty(),
                std::ranges::none_of(merged.changed, is_set) &&
                    std::ranges::none_of(merged.mass_ratio, [](float r) { return r != 1.0f; }));
      const HeadMerge again = method.merger->merge(view, plan);
      EXPECT_EQ(again.values, merged.values);
      EXPECT_EQ(again.keys, merged.keys);
      // Kept tokens that are no targets, and tokens that nothing arrives at, keep their rows.
      if (fitted || stage.rfind("cam", 0) == 0 || stage.rfind("weightedkv", 0) == 0) continue;
      EXPECT_EQ(merged.changed[0], 0);
      EXPECT_EQ(merged.changed[5], 0);
    }
}

}  // namespace
}  // namespace precis
