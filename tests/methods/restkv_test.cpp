// ReST-KV: change of an output if a token were evicted, averaged over the window with a decay.
#include <gtest/gtest.h>

#include "compress/matrix_output.h"
#include "methods/plain_layer.h"

namespace precis {
namespace {

using namespace test;

TEST(Restkv, ByHand) {
  // A = (1/5, 4/5), values (5, 0) and (0, 5), o = (1, 4): (1/4) ||(4, -4)|| = sqrt(2) and
  // 4 ||(-1, 1)|| = 4 sqrt(2).
  const LayerCase layer = hand_layer({{0}, {1}}, {{5, 0}, {0, 5}}, {{0}, {std::log(4.0)}});
  const std::vector<float> scores = scores_of("restkv(window=1,space=head)", layer, 0);
  EXPECT_NEAR(static_cast<double>(scores[0]), std::sqrt(2.0), 1e-4);
  EXPECT_NEAR(static_cast<double>(scores[1]), 4 * std::sqrt(2.0), 1e-3);
}

TEST(Restkv, IsTheExactChangeOfTheOutput) {
  // Without token p the output is the attention of the others, renormalised.
  const std::size_t n = 20;
  const LayerCase layer = make_layer({{1, 16}, 1, {0.25f, 0.0f}}, n, Pattern::kRandom, 15);
  const PlainAttention row = plain_attention(layer, 0, 0, n - 1);
  const std::vector<float> scores = scores_of("restkv(window=1,space=head)", layer, 0);
  for (std::size_t p = 0; p < n; ++p) {
    Row without(16, 0.0);
    for (std::size_t j = 0; j < n; ++j) {
      const Row value = value_of(layer, 0, j);
      for (std::size_t c = 0; c < 16 && j != p; ++c)
        without[c] += row.weights[j] / (1 - row.weights[p]) * value[c];
    }
    for (std::size_t c = 0; c < 16; ++c) without[c] -= row.output[c];
    EXPECT_NEAR(static_cast<double>(scores[p]), plain_norm(without), 1e-4);
  }
}

TEST(Restkv, IsTheExactChangeOfTheLayersOutput) {
  // W_O is linear, so what one query head adds to the layer's output changes by W_O of that.
  const std::size_t n = 20;
  const MatrixOutput output(40, 2 * 2 * 16, 3);
  const LayerCase layer =
      make_layer({{2, 16}, 2, {0.25f, 0.0f}, nullptr, &output}, n, Pattern::kRandom, 15);
  for (std::size_t h = 0; h < 2; ++h) {
    const std::vector<float> scores = scores_of("restkv(window=1)", layer, h);
    for (std::size_t p = 0; p < n; ++p) {
      double change = 0;
      for (std::size_t g = 0; g < 2; ++g) {
        const PlainAttention row = plain_attention(layer, h, g, n - 1);
        Row without(16, 0.0);
        for (std::size_t j = 0; j < n; ++j) {
          const Row value = value_of(layer, h, j);
          for (std::size_t c = 0; c < 16 && j != p; ++c)
            without[c] += row.weights[j] / (1 - row.weights[p]) * value[c];
        }
        Row before = output.apply(h * 2 + g, row.output);
        const Row after = output.apply(h * 2 + g, without);
        for (std::size_t r = 0; r < before.size(); ++r) before[r] -= after[r];
        change += plain_norm(before) / 2;
      }
      EXPECT_NEAR(static_cast<double>(scores[p]), change, 2e-4 * (0.01 + change));
    }
  }
}

TEST(Restkv, RandomRowsMatchTheFormula) {
  const std::size_t n = 40;
  const LayerCase layer = make_layer({{2, 16}, 3, {0.25f, 0.0f}}, n, Pattern::kRandom, 16);
  for (std::size_t h = 0; h < 2; ++h) {
    Row expected(n, 0.0);
    for (std::size_t t = n - 5; t < n; ++t) {
      Row current(n, 0.0);
      for (std::size_t g = 0; g < 3; ++g) {
        const PlainAttention row = plain_attention(layer, h, g, t);
        for (std::size_t j = 0; j <= t; ++j) {
          Row difference = value_of(layer, h, j);
          for (std::size_t c = 0; c < 16; ++c) difference[c] -= row.output[c];
          current[j] += row.weights[j] / (1 - row.weights[j]) * plain_norm(difference) / 3;
        }
      }
      for (std::size_t j = 0; j <= t; ++j)
        expected[j] = t == n - 5 ? current[j] : 0.7 * expected[j] + 0.3 * current[j];
    }
    const std::vector<float> scores = scores_of("restkv(window=5,alpha=0.3,space=head)", layer, h);
    for (std::size_t j = 0; j < n; ++j)
      EXPECT_NEAR(static_cast<double>(scores[j]), expected[j], 1e-3 * (1 + expected[j]));
  }
}

}  // namespace
}  // namespace precis
