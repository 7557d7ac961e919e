// The rows of attention, outputs and distances that scores are made of.
#include "methods/attention_rows.h"

#include <gtest/gtest.h>

#include "methods/plain_layer.h"
#include "methods/value_sizes.h"

namespace precis {
namespace {

using namespace test;

TEST(AttentionRows, MatchThePlainLoop) {
  const LayerCase layer = make_layer({{2, 16}, 3, {0.25f, 0.0f}}, 40, Pattern::kRandom, 8);
  HeadView head = view_head(layer, 1);
  const std::vector<float> outputs = attention_outputs(head, 7);
  std::size_t n_rows = 0;
  visit_attention_rows(head, 7, [&](const AttentionRow& row) {
    EXPECT_EQ(row.number, n_rows++);
    EXPECT_EQ(row.number, (row.token - 33) * 3 + row.member);
    const PlainAttention plain = plain_attention(layer, 1, row.member, row.token);
    ASSERT_EQ(row.attention.size(), row.token + 1);
    for (std::size_t j = 0; j <= row.token; ++j)
      EXPECT_NEAR(static_cast<double>(row.attention[j]), plain.weights[j], 1e-5);
    for (std::size_t c = 0; c < 16; ++c)
      EXPECT_NEAR(static_cast<double>(outputs[row.number * 16 + c]), plain.output[c], 1e-4);
  });
  EXPECT_EQ(n_rows, 21u);
}

TEST(AttentionRows, AWindowIsAtMostThePrompt) {
  const LayerCase layer = make_layer({{1, 16}, 1, {0.25f, 0.0f}}, 5, Pattern::kRandom, 9);
  HeadView head = view_head(layer, 0);
  std::size_t n_rows = 0;
  visit_attention_rows(head, 50, [&](const AttentionRow&) { ++n_rows; });
  EXPECT_EQ(n_rows, 5u);
  EXPECT_EQ(observed_window(0, 5), 5u);
  EXPECT_EQ(observed_window(3, 5), 3u);
  EXPECT_EQ(observed_window(9, 5), 5u);
}

TEST(ValueSizes, MatchThePlainLoop) {
  const LayerCase layer = make_layer({{1, 24}, 1, {0.25f, 0.0f}}, 9, Pattern::kRandom, 10);
  const HeadView head = view_head(layer, 0);
  const std::vector<float> norms = value_l1_norms(head);
  const std::vector<float> rows = value_rows(head);
  const Row point = value_of(layer, 0, 3);
  for (std::size_t t = 0; t < 9; ++t) {
    const Row value = value_of(layer, 0, t);
    EXPECT_NEAR(static_cast<double>(norms[t]), plain_l1(value), 1e-4);
    const ValueToPoint found =
        compare_value(rows.data() + t * 24, rows.data() + std::size_t{3} * 24, 24);
    double distance = 0;
    for (std::size_t c = 0; c < 24; ++c) distance += (value[c] - point[c]) * (value[c] - point[c]);
    EXPECT_NEAR(found.squared_distance, distance, 1e-4);
    EXPECT_NEAR(found.product, plain_dot(value, point), 1e-4);
  }
}

}  // namespace
}  // namespace precis
