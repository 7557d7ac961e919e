// LagKV: spread of a token relative to the range of the next partition.
#include <gtest/gtest.h>

#include "methods/plain_layer.h"

namespace precis {
namespace {

using namespace test;

TEST(Lagkv, ByHand) {
  // Lag 2, one sink. Partition {1, 2}, reference {3, 4}: channel 0 ranges over 0..2, channel 1 over
  // 0..4, the others are constant. Token 1: (2, 0) -> (1, 0), standard deviation over 8 channels
  // sqrt((7/8) / 7) = 0.35355; token 2: (0, 0) -> 0.
  const std::vector<Row> keys = {{9}, {2, 0}, {0, 0}, {0, 4}, {2, 0}};
  const LayerCase layer = hand_layer(keys, std::vector<Row>(5), {});
  const double spread = std::exp(std::sqrt(0.125));
  const std::vector<float> scores = scores_of("lagkv(lag=2,sinks=1,order=softmax)", layer, 0);
  EXPECT_EQ(scores[0], 2.0f);
  // Values are all 0: their half of the score is even.
  EXPECT_NEAR(static_cast<double>(scores[1]), 0.5 * spread / (spread + 1) + 0.25, 1e-6);
  EXPECT_NEAR(static_cast<double>(scores[2]), 0.5 / (spread + 1) + 0.25, 1e-6);
  EXPECT_FLOAT_EQ(scores[3], 1 + 1.0f / 3);
  EXPECT_FLOAT_EQ(scores[4], 1 + 2.0f / 3);
  const std::vector<float> ranks = scores_of("lagkv(lag=2,sinks=1)", layer, 0);
  EXPECT_EQ(ranks[1], 0.5f);
  EXPECT_EQ(ranks[2], 0.0f);
}

TEST(Lagkv, ShortPromptsAreRankedByRecency) {
  const LayerCase layer = make_layer({{1, 16}, 1, {0.25f, 0.0f}}, 259, Pattern::kRandom, 6);
  const std::vector<float> scores = scores_of("lagkv", layer, 0);  // below 4 + 2 * 128
  for (std::size_t t = 5; t < 259; ++t) EXPECT_LT(scores[t - 1], scores[t]);
  for (std::size_t t = 0; t < 4; ++t) EXPECT_GT(scores[t], scores[258]);
}

// The definition for one token, in double.
double lag_spread(const std::vector<Row>& rows, std::size_t token, std::size_t first,
                  std::size_t lag) {
  const std::size_t width = rows[token].size();
  Row scaled;
  for (std::size_t c = 0; c < width; ++c) {
    double low = rows[first][c];
    double high = low;
    for (std::size_t t = first; t < first + lag; ++t) {
      low = std::min(low, rows[t][c]);
      high = std::max(high, rows[t][c]);
    }
    scaled.push_back((rows[token][c] - low) / (high - low));
  }
  double sum = 0;
  double squares = 0;
  for (const double x : scaled) sum += x;
  for (const double x : scaled)
    squares += (x - sum / static_cast<double>(width)) * (x - sum / static_cast<double>(width));
  return std::sqrt(squares / static_cast<double>(width - 1));
}

TEST(Lagkv, RandomRowsMatchTheFormula) {
  // 3 + 4 * 10 + 7 tokens: partitions 0 to 2 are scored, partition 3 and the rest are the tail.
  const std::size_t lag = 10;
  const LayerCase layer = make_layer({{2, 16}, 1, {0.25f, 0.0f}}, 50, Pattern::kRandom, 7);
  for (std::size_t h = 0; h < 2; ++h) {
    std::vector<Row> keys;
    std::vector<Row> values;
    for (std::size_t t = 0; t < 50; ++t) {
      keys.push_back(key_of(layer, h, t));
      values.push_back(value_of(layer, h, t));
    }
    const std::vector<float> scores = scores_of("lagkv(lag=10,sinks=3,order=softmax)", layer, h);
    const std::vector<float> ranks = scores_of("lagkv(lag=10,sinks=3)", layer, h);
    for (std::size_t first = 3; first < 33; first += lag) {
      double key_sum = 0;
      double value_sum = 0;
      for (std::size_t t = first; t < first + lag; ++t) {
        key_sum += std::exp(lag_spread(keys, t, first + lag, lag));
        value_sum += std::exp(lag_spread(values, t, first + lag, lag));
      }
      Row expected;
      for (std::size_t t = first; t < first + lag; ++t)
        expected.push_back((std::exp(lag_spread(keys, t, first + lag, lag)) / key_sum +
                            std::exp(lag_spread(values, t, first + lag, lag)) / value_sum) /
                           2);
      for (std::size_t i = 0; i < lag; ++i) {
        EXPECT_NEAR(static_cast<double>(scores[first + i]), expected[i], 1e-6);
        std::size_t lower = 0;
        for (const double other : expected) lower += other < expected[i] ? 1 : 0;
        EXPECT_FLOAT_EQ(ranks[first + i], static_cast<float>(lower) / 10);
      }
    }
    EXPECT_GT(scores[33], 1.0f);
  }
}

}  // namespace
}  // namespace precis
