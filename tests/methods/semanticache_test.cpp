// SemantiCache: tokens of a chunk cluster around its kept ones and merge.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "methods/plain_layer.h"

namespace precis {
namespace {

using namespace test;

TEST(Semanticache, ByHand) {
  // Token 1 is like both seeds, 0 and 2, by a cosine of 0.8 to 0 and 0.96 to 2; seed 0 has more
  // attention and comes first. Token 3 is like neither. Token 4 is like seed 2, in the next chunk.
  const LayerCase layer =
      hand_layer({{5, 0}, {4, 3}, {3, 4}, {0, 0, 1}, {3, 4}},
                 {{3, 0}, {0, 5}, {1, 1}, {2, 2}, {7, 7}}, {{0}, {0}, {0}, {0}, {1}});
  const auto merge = [&](const std::string& args) {
    return merged_by("semanticache(window=1,sinks=0,split=fixed," + args + ")", layer, 0,
                     plan_of({0, 2}));
  };
  const HeadMerge merged = merge("chunk=4,threshold=0.75");
  EXPECT_EQ(merged.changed, (std::vector<std::uint8_t>{1, 0}));
  EXPECT_EQ(merged.keys_changed, merged.changed);
  EXPECT_EQ(merged.n_merged, (std::vector<std::uint32_t>{1, 0}));
  EXPECT_EQ(merged.mass_ratio, (std::vector<float>{2, 1}));
  EXPECT_EQ(merged.n_dropped, 2u);
  EXPECT_NEAR(static_cast<double>(merged.keys[0]), 4.5, 1e-6);
  EXPECT_NEAR(static_cast<double>(merged.keys[1]), 1.5, 1e-6);
  EXPECT_NEAR(static_cast<double>(merged.values[1]), 2.5, 1e-6);
  // Above 0.8 the other seed takes it; in one chunk it also takes token 4; in chunks of two the
  // seeds are apart.
  EXPECT_EQ(merge("chunk=4,threshold=0.9").n_merged, (std::vector<std::uint32_t>{0, 1}));
  EXPECT_EQ(merge("chunk=5,threshold=0.9").n_merged, (std::vector<std::uint32_t>{0, 2}));
  EXPECT_EQ(merge("chunk=2,threshold=0.75").n_merged, (std::vector<std::uint32_t>{1, 0}));
}

TEST(Semanticache, KeysMayEndAChunk) {
  // Neighbours have cosines 1, 1, 0, 1, 1: one break, between tokens 2 and 3, although all tokens
  // but 3 and 4 are alike.
  const std::vector<Row> keys = {{1, 0}, {2, 0}, {1, 0}, {0, 1}, {0, 2}, {0.5, 0.5}};
  const LayerCase layer = hand_layer(keys, std::vector<Row>(6, {1}), {});
  const auto merged = [&](const std::string& args) {
    return merged_by("semanticache(window=1,sinks=0,threshold=0.7," + args + ")", layer, 0,
                     plan_of({0}));
  };
  EXPECT_EQ(merged("split=keys").n_merged[0], 2u);
  EXPECT_EQ(merged("split=fixed").n_merged[0], 3u);
}

TEST(Semanticache, RandomRowsMatchTheFormula) {
  const std::size_t n = 90;
  const std::size_t width = 8;
  const std::size_t window = 12;
  const LayerCase layer = make_layer({{2, width}, 2, {0.3f, 0.0f}}, n, Pattern::kRandom, 28);
  HeadPlan plan;
  for (std::uint32_t t = 0; t < n; t += 1 + t % 5) plan.kept.push_back(t);
  plan.targets = plan.kept;
  const auto cosine = [&](std::size_t h, std::size_t s, std::size_t t) {
    const Row a = key_of(layer, h, s);
    const Row b = key_of(layer, h, t);
    return plain_dot(a, b) / (plain_norm(a) * plain_norm(b));
  };
  for (const std::string split : {"fixed", "keys"})
    for (std::size_t h = 0; h < 2; ++h) {
      SCOPED_TRACE(split);
      Row mass(n, 0.0);
      for (std::size_t t = n - window; t < n; ++t)
        for (std::size_t g = 0; g < 2; ++g) {
          const PlainAttention row = plain_attention(layer, h, g, t);
          for (std::size_t j = 0; j <= t; ++j) mass[j] += row.weights[j];
        }
      double mean = 0;
      double deviation = 0;
      for (std::size_t t = 1; t < n; ++t) mean += cosine(h, t - 1, t) / static_cast<double>(n - 1);
      for (std::size_t t = 1; t < n; ++t)
        deviation += std::pow(cosine(h, t - 1, t) - mean, 2) / static_cast<double>(n - 1);
      deviation = std::sqrt(deviation);
      std::vector<std::size_t> chunk_of(n, 0);
      std::size_t length = 1;
      for (std::size_t t = 1; t < n; ++t) {
        const bool ends =
            length == 16 || (split == "keys" && cosine(h, t - 1, t) < mean - deviation);
        chunk_of[t] = chunk_of[t - 1] + (ends ? 1 : 0);
        length = ends ? 1 : length + 1;
      }
      // The seed of a token: of those of its chunk that are alike, the one with most attention.
      const HeadMerge merged = merged_by(
          concat("semanticache(chunk=16,threshold=0.3,split=", split, ",window=", window, ")"),
          layer, h, plan);
      std::vector<std::vector<std::size_t>> clusters(plan.kept.size());
      for (std::size_t t = 0; t < n; ++t) {
        if (std::binary_search(plan.kept.begin(), plan.kept.end(), t)) continue;
        std::size_t seed = plan.kept.size();
        for (std::size_t i = 0; i < plan.kept.size(); ++i) {
          const std::size_t s = plan.kept[i];
          if (s < 4 || chunk_of[s] != chunk_of[t] || cosine(h, s, t) < 0.3) continue;
          if (seed == plan.kept.size() || mass[s] > mass[plan.kept[seed]]) seed = i;
        }
        if (seed != plan.kept.size()) clusters[seed].push_back(t);
      }
      for (std::size_t i = 0; i < plan.kept.size(); ++i) {
        EXPECT_EQ(merged.n_merged[i], clusters[i].size());
        Row key = key_of(layer, h, plan.kept[i]);
        Row value = value_of(layer, h, plan.kept[i]);
        for (const std::size_t t : clusters[i])
          for (std::size_t c = 0; c < width; ++c) {
            key[c] += key_of(layer, h, t)[c];
            value[c] += value_of(layer, h, t)[c];
          }
        const auto size = static_cast<double>(clusters[i].size() + 1);
        for (std::size_t c = 0; c < width && size > 1; ++c) {
          EXPECT_NEAR(static_cast<double>(merged.keys[i * width + c]), key[c] / size, 1e-4);
          EXPECT_NEAR(static_cast<double>(merged.values[i * width + c]), value[c] / size, 1e-4);
        }
      }
    }
}

}  // namespace
}  // namespace precis
