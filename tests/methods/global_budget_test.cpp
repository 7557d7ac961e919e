// layers=global against a plain ranking of the scores of all layers, and the same for LAVa's
// shares.
#include <gtest/gtest.h>

#include <array>
#include <set>
#include <tuple>

#include "base/error.h"
#include "compress/matrix_output.h"
#include "methods/plain_layer.h"
#include "support/head_rows.h"

namespace precis {
namespace {

using namespace test;

constexpr std::size_t kTokens = 150;
constexpr LayerShape kShape{{2, 16}, 2, {0.25f, 0.0f}};
constexpr std::size_t kEntryBytes = 2 * 16 * 2 + 4;

// Keys of layers differ in size, so that their attention is more or less sharp.
std::vector<LayerCase> layers_of(std::size_t n_layers, Pattern pattern) {
  std::vector<LayerCase> layers;
  for (std::uint32_t l = 0; l < n_layers; ++l) {
    layers.push_back(make_layer(kShape, kTokens, pattern, 20 + l));
    for (std::size_t h = 0; h < 2; ++h)
      for (std::size_t i = 0; i < kTokens * 16; ++i) {
        Half& x = layers.back().dense.key_row(h, 0)[i];
        x = to_half(to_float(x) * (0.3f + static_cast<float>((l * 2 + h) % 5)));
      }
    observe(layers.back());
  }
  return layers;
}

std::vector<FrozenLayer> condense(const Method& method, const std::vector<LayerCase>& layers,
                                  std::size_t n_entries, CompressionReport* report = nullptr,
                                  const RowTypes& rows = {}) {
  Condenser condenser(method, Budget::parse(concat(n_entries * kEntryBytes, "B")),
                      std::vector<LayerShape>(layers.size(), layers[0].shape), layers[0].n_tokens,
                      3, 0, rows);
  SerialExecutor serial;
  for (std::size_t l = 0; l < layers.size(); ++l)
    condenser.condense_layer(l, layers[l].dense, layers[l].observed, serial);
  std::vector<FrozenLayer> frozen = condenser.finish(serial);
  if (report != nullptr) *report = condenser.report();
  return frozen;
}

struct Place {
  float score;
  std::size_t token, layer, head;
};

// The protected tokens and the `floor` best others of every head, then the best of all the rest.
std::set<std::array<std::size_t, 3>> ranked(const Method& method,
                                            const std::vector<LayerCase>& layers,
                                            std::size_t n_entries, std::size_t floor) {
  const auto before = [](const Place& a, const Place& b) {
    if (a.score != b.score) return a.score > b.score;
    return std::tie(a.token, a.layer, a.head) < std::tie(b.token, b.layer, b.head);
  };
  std::set<std::array<std::size_t, 3>> kept;
  std::vector<Place> rest;
  for (std::size_t l = 0; l < layers.size(); ++l)
    for (std::size_t h = 0; h < 2; ++h) {
      HeadView view = view_head(layers[l], h);
      std::vector<float> scores(kTokens);
      method.scorer->score(view, scores);
      std::vector<Place> own;
      for (std::size_t t = 0; t < kTokens; ++t) {
        if (method.selector->protection().covers(t, kTokens))
          kept.insert({l, h, t});
        else
          own.push_back({scores[t], t, l, h});
      }
      std::sort(own.begin(), own.end(), before);
      for (std::size_t i = 0; i < own.size(); ++i) {
        if (i < floor)
          kept.insert({l, h, own[i].token});
        else
          rest.push_back(own[i]);
      }
    }
  std::sort(rest.begin(), rest.end(), before);
  for (std::size_t i = 0; kept.size() < n_entries; ++i)
    kept.insert({rest[i].layer, rest[i].head, rest[i].token});
  return kept;
}

TEST(GlobalBudget, KeepsTheBestOfAllLayersAndHeads) {
  for (const Pattern pattern : {Pattern::kRandom, Pattern::kRepeated, Pattern::kZeros})
    for (const std::size_t n_layers : {1u, 2u, 5u}) {
      const std::vector<LayerCase> layers = layers_of(n_layers, pattern);
      for (const std::size_t per_head : {20u, 31u, 75u, 140u})
        for (const std::size_t floor : {0u, 8u}) {
          SCOPED_TRACE(testing::Message() << pattern_name(pattern) << " " << n_layers << " layers, "
                                          << per_head << " a head, floor " << floor);
          const Method method = builtin_methods().parse(
              concat("score=snapkv(window=8) select=layer(recent=8,sinks=4,floor=", floor,
                     ") layers=global"));
          const std::size_t n_entries = per_head * 2 * n_layers;
          CompressionReport report;
          const std::vector<FrozenLayer> frozen = condense(method, layers, n_entries, &report);
          std::set<std::array<std::size_t, 3>> kept;
          for (std::size_t l = 0; l < n_layers; ++l)
            for (std::size_t h = 0; h < 2; ++h)
              for (const std::int32_t t : kept_positions(frozen[l], h))
                kept.insert({l, h, static_cast<std::size_t>(t)});
          EXPECT_TRUE(kept == ranked(method, layers, n_entries, floor));
          EXPECT_EQ(report.kept_bytes, n_entries * kEntryBytes);
          // Entries as f16 with their positions and tokens, and the scores.
          EXPECT_LE(report.most_held_bytes,
                    (n_entries + 2 * kTokens) * (kEntryBytes + 4) + n_layers * 2 * kTokens * 4);
        }
    }
}

TEST(GlobalBudget, SharperLayersGetMore) {
  const std::vector<LayerCase> layers = layers_of(4, Pattern::kRandom);
  const Method method = builtin_methods().parse("snapkv select=layer layers=global");
  CompressionReport report;
  condense(method, layers, 30 * 2 * 4, &report);
  std::set<std::size_t> sizes;
  for (const std::vector<std::size_t>& layer : report.entries) sizes.insert(layer[0] + layer[1]);
  EXPECT_GT(sizes.size(), 2u);
}

// The same bytes whatever the rows; selectors that share nothing between heads; merged values.
TEST(GlobalBudget, WorksWithEveryStage) {
  const Rope rope{64, false, std::vector<double>(32, 0.01), 1.0f};
  const MatrixOutput output(40, 2 * 2 * 64, 1);
  const LayerShape shape{{2, 64}, 2, {0.125f, 0.0f}, &rope, &output};
  std::vector<LayerCase> layers;
  for (std::uint32_t l = 0; l < 3; ++l)
    layers.push_back(make_layer(shape, kTokens, Pattern::kRandom, l));
  const Registry registry = builtin_methods();
  for (const Registry::Preset& preset : registry.presets()) {
    if (preset.name == "full") continue;
    for (const RowTypes rows : {RowTypes{}, RowTypes{RowType::kQ8_0, RowType::kQ4}}) {
      SCOPED_TRACE(preset.name);
      const Method method = registry.parse(preset.name + " layers=global");
      Condenser condenser(method, Budget::parse("50%"), std::vector<LayerShape>(3, shape), kTokens,
                          1, 0, rows);
      SerialExecutor serial;
      for (std::size_t l = 0; l < 3; ++l)
        condenser.condense_layer(l, layers[l].dense, layers[l].observed, serial);
      std::size_t bytes = 0;
      for (const FrozenLayer& layer : condenser.finish(serial)) {
        bytes += layer.bytes();
        for (std::size_t h = 0; h < 2; ++h) EXPECT_EQ(layer.types(h), rows);
      }
      EXPECT_EQ(bytes, condenser.report().kept_bytes);
      const std::size_t allowed =
          Budget::parse("50%").bytes(3 * 2 * row_bytes(rows, 64, kTokens), kTokens);
      EXPECT_LE(bytes, allowed);
      EXPECT_GE(bytes * 10, allowed * 8);
    }
  }
}

TEST(EntropyBudgets, FollowTheEntropyOfTheScores) {
  const std::vector<LayerCase> layers = layers_of(4, Pattern::kRandom);
  const Method method = builtin_methods().parse("lava");
  CompressionReport report;
  condense(method, layers, 40 * 2 * 4, &report);
  std::vector<double> entropies;
  double total = 0;
  for (const LayerCase& layer : layers) {
    std::vector<float> all;
    for (std::size_t h = 0; h < 2; ++h) {
      const std::vector<float> scores = scores_of("lava", layer, h);
      all.insert(all.end(), scores.begin(), scores.end());
    }
    double sum = 0, entropy = 0;
    for (const float s : all) sum += static_cast<double>(s);
    for (const float s : all)
      if (s > 0) entropy -= static_cast<double>(s) / sum * std::log(static_cast<double>(s) / sum);
    entropies.push_back(entropy);
    total += entropy;
  }
  std::size_t n_kept = 0;
  for (std::size_t l = 0; l < 4; ++l) {
    const std::size_t n = report.entries[l][0] + report.entries[l][1];
    n_kept += n;
    // Bounds and whole numbers move a little; at least the protected tokens and the floor.
    const double wanted = std::max(entropies[l] / total * 320, 2.0 * 40);
    EXPECT_NEAR(static_cast<double>(n), wanted, 12) << l;
  }
  EXPECT_GE(n_kept + 4, 320u);
  EXPECT_LE(n_kept, 320u);
}

}  // namespace
}  // namespace precis
