// Budgets of layers: worked out by hand, and held to the whole budget on real drivers.
#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"
#include "compress/condenser.h"
#include "compress/layer_case.h"
#include "methods/registry.h"

namespace precis {
namespace {

std::vector<double> entries(const std::string& stage, std::size_t n_layers, std::size_t m,
                            Protection protection = {}) {
  const Method method =
      builtin_methods().parse("score=random select=head(recent=1) layers=" + stage);
  return method.layers->entries(n_layers, m, protection);
}

TEST(Pyramid, FallsLinearlyOverTheLayers) {
  // 100 a head of which 20 are protected: 80 / 4 = 20 for the last layer, 140 for the first.
  EXPECT_EQ(entries("pyramid(beta=4)", 5, 100, {4, 16}),
            (std::vector<double>{160, 130, 100, 70, 40}));
  EXPECT_EQ(entries("pyramid(beta=1)", 3, 50), (std::vector<double>{50, 50, 50}));
  EXPECT_EQ(entries("pyramid", 1, 50, {0, 10}), (std::vector<double>{50}));
  EXPECT_EQ(entries("pyramid", 2, 10, {5, 5}), (std::vector<double>{10, 10}));
}

TEST(LayerWeights, AreInterpolatedOverTheDepth) {
  EXPECT_EQ(entries("weights", 3, 10), (std::vector<double>{10, 10, 10}));
  EXPECT_EQ(entries("weights(list=3-1)", 3, 10), (std::vector<double>{15, 10, 5}));
  EXPECT_EQ(entries("weights(list=4-0-2)", 3, 10), (std::vector<double>{20, 0, 10}));
  EXPECT_EQ(entries("weights(list=1-3-1)", 5, 9), (std::vector<double>{5, 10, 15, 10, 5}));
  EXPECT_EQ(entries("weights(list=0-0)", 2, 7), (std::vector<double>{7, 7}));
  EXPECT_EQ(entries("weights(list=5)", 2, 7), (std::vector<double>{7, 7}));
}

TEST(LayerWeights, AreWrittenInSpecs) {
  const Registry registry = builtin_methods();
  const Method method = registry.parse("snapkv layers=weights(list=2-1.5-0.25)");
  EXPECT_NE(method.spec.find("layers=weights(list=2-1.5-0.25,fit=any)"), std::string::npos);
  EXPECT_EQ(registry.parse(method.spec).spec, method.spec);
  EXPECT_EQ(registry.parse("pyramidkv layers=none").spec, registry.parse("snapkv").spec);
  for (const char* bad : {"", "-", "1-", "-1", "1--2", "x", "1e-5", "0.0001", "2000000"})
    EXPECT_THROW(registry.parse(std::string("snapkv layers=weights(list=") + bad + ")"), Error)
        << bad;
}

// Keep ratios per layer, in percent, with their mean as the budget.
TEST(LayerWeights, AreKeepRatios) {
  constexpr std::size_t kTokens = 400;
  LayerShape shape;
  shape.kv = {2, 64};
  shape.rule = {0.125f, 0};
  const test::LayerCase layer = test::make_layer(shape, kTokens, test::Pattern::kRandom, 6);
  Condenser condenser(builtin_methods().parse("snapkv layers=weights(list=50-30-10,fit=exact)"),
                      Budget::parse("30%"), std::vector<LayerShape>(3, shape), kTokens, 1);
  SerialExecutor executor;
  for (std::size_t l = 0; l < 3; ++l)
    condenser.condense_layer(l, layer.dense, layer.observed, executor);
  condenser.finish(executor);
  const double ratios[] = {0.5, 0.3, 0.1};
  // Positions are stored beside the rows, so that entries are a little fewer than the bytes say.
  for (std::size_t l = 0; l < 3; ++l)
    for (const std::size_t n : condenser.report().entries[l])
      EXPECT_NEAR(static_cast<double>(n), ratios[l] * kTokens, 0.02 * kTokens) << l;
}

// Driven over all layers of a synthetic model: the budget holds whatever the layers get, every
// layer keeps its protected tokens, and more weight means more entries.
TEST(LayerBudgets, KeepTheWholeBudget) {
  constexpr std::size_t kLayers = 6;
  constexpr std::size_t kTokens = 300;
  LayerShape shape;
  shape.kv = {2, 64};
  shape.group = 3;
  shape.rule = {0.125f, 0};
  const test::LayerCase layer = test::make_layer(shape, kTokens, test::Pattern::kRandom, 5);
  for (const char* stage : {"pyramid", "pyramid(beta=2)", "weights(list=5-1)", "weights(list=0-1)",
                            "weights(list=1-100-1)"}) {
    for (const char* keep : {"15%", "30%", "60%", "95%", "100"}) {
      for (const RowTypes rows : {RowTypes{}, RowTypes{RowType::kQ8_0, RowType::kQ4}}) {
        SCOPED_TRACE(testing::Message() << stage << " " << keep);
        const Method method = builtin_methods().parse(std::string("snapkv layers=") + stage);
        Condenser condenser(method, Budget::parse(keep),
                            std::vector<LayerShape>(kLayers, layer.shape), kTokens, 1, 0, rows);
        SerialExecutor executor;
        std::size_t n_entries = 0;
        std::size_t bytes = 0;
        for (std::size_t l = 0; l < kLayers; ++l)
          condenser.condense_layer(l, layer.dense, layer.observed, executor);
        for (const FrozenLayer& frozen : condenser.finish(executor)) {
          bytes += frozen.bytes();
          for (std::size_t h = 0; h < 2; ++h) {
            n_entries += frozen.n_entries(h);
            EXPECT_GE(frozen.n_entries(h), 32u);
            EXPECT_LT(frozen.n_entries(h), kTokens);
          }
        }
        const std::size_t m = condenser.entries_per_head();
        EXPECT_LE(n_entries, m * kLayers * 2);
        // All of it is used, but for what whole groups of quantised rows cost.
        EXPECT_GE(n_entries + (rows == RowTypes{} ? 0 : 2 * kLayers * 32), m * kLayers * 2);
        const std::size_t whole = kLayers * 2 * row_bytes(rows, 64, kTokens);
        EXPECT_LE(bytes, Budget::parse(keep).bytes(whole, kTokens));
        const auto& entries = condenser.report().entries;
        if (std::string(stage) == "pyramid") {
          EXPECT_GE(entries.front()[0], entries.back()[0]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace precis
