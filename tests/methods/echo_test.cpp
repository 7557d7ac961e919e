// Echo: the attention of queries that are moved behind the prompt, in double straight from its
// definition.
#include <gtest/gtest.h>

#include <algorithm>

#include "methods/plain_layer.h"

namespace precis {
namespace {

using namespace test;

constexpr std::size_t kWidth = 16;

Row query_of(const LayerCase& layer, std::size_t head, std::size_t member, std::size_t token) {
  const float* query = layer.observed.queries.data() +
                       ((head * layer.shape.group + member) * layer.n_tokens + token) * kWidth;
  return Row(query, query + kWidth);
}

// rope: nullptr where nothing is turned.
Row plain_echo(const LayerCase& layer, std::size_t head, std::size_t chunk, const Rope* rope) {
  const std::size_t n = layer.n_tokens;
  const auto logit = [&](const Row& query, const Row& key) {
    const double z = static_cast<double>(layer.shape.rule.scale) * plain_dot(query, key);
    const auto softcap = static_cast<double>(layer.shape.rule.softcap);
    return softcap > 0 ? softcap * std::tanh(z / softcap) : z;
  };
  Row scores(n, 0.0);
  for (std::size_t first = 0; first < n; first += chunk) {
    const std::size_t last = std::min(n, first + chunk);
    const auto moved = [&](Row row) {
      return rope == nullptr ? row : turned(*rope, row, static_cast<double>(n - first));
    };
    for (std::size_t t = first; t < last; ++t)
      for (std::size_t g = 0; g < layer.shape.group; ++g) {
        const Row query = moved(query_of(layer, head, g, t));
        double sum = 0;
        Row weights;
        for (std::size_t j = first; j < last; ++j) {
          weights.push_back(std::exp(logit(query, key_of(layer, head, j))));
          sum += weights.back();
        }
        for (std::size_t j = 0; j < std::min<std::size_t>(4, first); ++j)
          sum += std::exp(logit(query, key_of(layer, head, j)));
        for (std::size_t j = first; j <= t; ++j)
          sum += std::exp(logit(query, moved(key_of(layer, head, j))));
        for (std::size_t j = first; j < last; ++j)
          scores[j] = std::max(scores[j], weights[j - first] / sum);
      }
  }
  return scores;
}

std::vector<float> echo(const LayerCase& layer, std::size_t head, std::size_t chunk,
                        const Rope* rope) {
  HeadView view = view_head(layer, head);
  view.rope = rope;
  std::vector<float> scores(layer.n_tokens);
  const Method method = builtin_methods().parse("echo(chunk=" + std::to_string(chunk) + ")");
  EXPECT_EQ(method.observation(layer.n_tokens).n_queries, layer.n_tokens);
  method.scorer->score(view, scores);
  return scores;
}

TEST(Echo, IsTheMostThatMovedQueriesOfTheChunkGive) {
  for (const bool interleaved : {false, true})
    for (const float softcap : {0.0f, 2.0f}) {
      const LayerCase layer =
          make_layer({{2, kWidth}, 3, {0.25f, softcap}}, 150, Pattern::kRandom, 5);
      const Rope rope = make_rope(interleaved, 12);
      // Several chunks, the last one short; and the whole prompt as one.
      for (const std::size_t chunk : {64u, 400u})
        for (const std::size_t head : {0u, 1u}) {
          const std::vector<float> scores = echo(layer, head, chunk, &rope);
          const Row expected = plain_echo(layer, head, chunk, &rope);
          for (std::size_t t = 0; t < scores.size(); ++t)
            ASSERT_NEAR(scores[t], expected[t], 2e-3 * expected[t] + 1e-6) << t;
        }
    }
}

TEST(Echo, WithoutRopeNothingMoves) {
  const LayerCase layer = make_layer({{1, kWidth}, 2, {0.25f, 0.0f}}, 90, Pattern::kRandom, 6);
  const std::vector<float> scores = echo(layer, 0, 32, nullptr);
  const Row expected = plain_echo(layer, 0, 32, nullptr);
  for (std::size_t t = 0; t < scores.size(); ++t)
    ASSERT_NEAR(scores[t], expected[t], 1e-4 * expected[t]) << t;
}

// Why it is more than the prompt's own attention: a token may be found by a query that came before
// it.
TEST(Echo, QueriesFindTokensThatCameAfterThem) {
  LayerCase layer = make_layer({{1, kWidth}, 1, {1.0f, 0.0f}}, 60, Pattern::kZeros, 7);
  layer.dense.key_row(0, 40)[0] = to_half(8.0f);
  layer.observed.queries[20 * kWidth] = 1.0f;  // of token 20
  const std::vector<float> scores = echo(layer, 0, 60, nullptr);
  EXPECT_GT(scores[40], 0.9f);
  std::vector<float> others = scores;
  others.erase(others.begin() + 40);
  EXPECT_LT(*std::max_element(others.begin(), others.end()), 0.1f);
}

}  // namespace
}  // namespace precis
