// Keys that do not bear quantising are found by held-out error, layer by layer.
#include "compress/row_choice.h"

#include <gtest/gtest.h>

#include "compress/condenser.h"
#include "compress/layer_case.h"
#include "methods/registry.h"

namespace precis {
namespace {

using test::LayerCase;
using test::make_layer;
using test::Pattern;

const LayerShape kShape{{2, 64}, 3, {0.125f, 0.0f}};
constexpr std::size_t kTokens = 300;

// One huge channel in a block of 32: what is left of the others in q8_0 is noise.
LayerCase with_a_huge_channel() {
  LayerCase layer = make_layer(kShape, kTokens, Pattern::kRandom, 3);
  for (std::size_t h = 0; h < 2; ++h)
    for (std::size_t t = 0; t < kTokens; ++t) layer.dense.key_row(h, t)[5] = to_half(900.0f);
  test::observe(layer);
  return layer;
}

CompressionReport condense(const LayerCase& layer, const char* spec, const char* keep,
                           const RowTypes& rows, FrozenLayer* out = nullptr) {
  Condenser condenser(builtin_methods().parse(spec), Budget::parse(keep), {layer.shape}, kTokens, 1,
                      0, rows);
  SerialExecutor serial;
  FrozenLayer frozen = test::condense_only(condenser, layer.dense, layer.observed, serial);
  if (out != nullptr) *out = std::move(frozen);
  return condenser.report();
}

TEST(RowChoice, OrdinaryKeysAreStoredAsAsked) {
  const LayerCase layer = make_layer(kShape, kTokens, Pattern::kRandom, 3);
  const CompressionReport q8 = condense(layer, "full", "100%", {RowType::kQ8_0, RowType::kF16});
  EXPECT_EQ(q8.key_types, std::vector<RowType>{RowType::kQ8_0});
  EXPECT_GT(q8.key_errors[0], 0);
  EXPECT_LT(q8.key_errors[0], kMaxKeyError);
  const CompressionReport f16 = condense(layer, "full", "100%", {});
  EXPECT_EQ(f16.key_types, std::vector<RowType>{RowType::kF16});
  EXPECT_EQ(f16.key_errors[0], 0);
}

TEST(RowChoice, AHugeChannelKeepsKeysInF16) {
  const LayerCase layer = with_a_huge_channel();
  FrozenLayer frozen(kShape.kv, std::vector<FrozenLayer::Head>(2));
  const CompressionReport report =
      condense(layer, "full", "100%", {RowType::kQ8_0, RowType::kQ8_0}, &frozen);
  EXPECT_EQ(report.key_types, std::vector<RowType>{RowType::kF16});
  EXPECT_EQ(frozen.types(0).keys, RowType::kF16);
  EXPECT_EQ(frozen.types(0).values, RowType::kQ8_0);
}

// Per channel, a constant offset costs nothing: KIVI's reason for q4's layout.
TEST(RowChoice, AnOffsetOfAChannelIsNoProblemPerChannel) {
  const LayerCase layer = with_a_huge_channel();
  const LayerCase plain = make_layer(kShape, kTokens, Pattern::kRandom, 3);
  const auto error = [](const LayerCase& l, RowType type) {
    HeadView view;
    view.n_tokens = kTokens;
    view.head_dim = 64;
    view.entries = l.dense.head(0);
    view.rule = l.shape.rule;
    view.group = 3;
    view.n_queries = l.observed.n_tokens;
    view.queries = l.observed.queries.data();
    view.log_sum_exp = l.observed.log_sum_exp.data();
    return try_keys(view, type).relative();
  };
  EXPECT_GT(error(layer, RowType::kQ8_0), 30 * error(plain, RowType::kQ8_0));
  EXPECT_LT(error(layer, RowType::kQ4), 3 * error(plain, RowType::kQ4));
}

// Layers that share one budget by their scores: finer keys take their bytes from it, and where a
// budget hardly holds the protected tokens it is an ordinary result, never a failed check.
TEST(RowChoice, FinerLayersFitInABudgetThatLayersShare) {
  const LayerCase huge = with_a_huge_channel();
  const LayerCase plain = make_layer(kShape, kTokens, Pattern::kRandom, 4);
  const Method method = builtin_methods().parse("snapkv select=layer(recent=16) layers=global");
  const RowTypes rows{RowType::kQ8_0, RowType::kQ4};
  std::size_t n_finer = 0;
  for (const char* keep : {"7%", "8%", "9%", "10%", "14%", "25%", "60%", "95%"}) {
    SCOPED_TRACE(keep);
    Condenser condenser(method, Budget::parse(keep), {huge.shape, plain.shape, huge.shape}, kTokens,
                        1, 0, rows);
    SerialExecutor serial;
    std::size_t l = 0;
    for (const LayerCase* layer : {&huge, &plain, &huge})
      condenser.condense_layer(l++, layer->dense, layer->observed, serial);
    std::size_t bytes = 0;
    for (const FrozenLayer& layer : condenser.finish(serial)) {
      bytes += layer.bytes();
      for (std::size_t h = 0; h < 2; ++h) EXPECT_GE(layer.n_entries(h), 16u);
    }
    EXPECT_LE(bytes, Budget::parse(keep).bytes(3 * 2 * row_bytes(rows, 64, kTokens), kTokens));
    for (const RowType type : condenser.report().key_types) n_finer += type == RowType::kF16;
  }
  EXPECT_GE(n_finer, 4u);
}

TEST(RowChoice, AFinerLayerKeepsFewerEntriesInItsShare) {
  const RowTypes q8{RowType::kQ8_0, RowType::kQ8_0};
  const CompressionReport plain =
      condense(make_layer(kShape, kTokens, Pattern::kRandom, 3), "streaming", "50%", q8);
  const CompressionReport finer = condense(with_a_huge_channel(), "streaming", "50%", q8);
  ASSERT_EQ(finer.key_types, std::vector<RowType>{RowType::kF16});
  EXPECT_LT(finer.entries[0][0], plain.entries[0][0]);
  EXPECT_LE(finer.kept_bytes, plain.kept_bytes);
  EXPECT_GT(finer.kept_bytes, plain.kept_bytes * 95 / 100);
}

TEST(RowChoice, WithoutRoomForProtectedTokensTheTypeStays) {
  // 4 sinks and 16 recent tokens protected: 21 entries in q8_0 leave room for 14 in f16 keys.
  const CompressionReport report = condense(with_a_huge_channel(), "streaming(sinks=4,recent=16)",
                                            "7.6%", {RowType::kQ8_0, RowType::kQ8_0});
  EXPECT_EQ(report.key_types, std::vector<RowType>{RowType::kQ8_0});
  EXPECT_GT(report.key_errors[0], kMaxKeyError);
}

}  // namespace
}  // namespace precis
