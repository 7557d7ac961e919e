// Expected Attention against its definition, in double: queries turned back one by one, turned to
// every future position, and the moments of those.
#include <gtest/gtest.h>

#include <functional>

#include "compress/matrix_output.h"
#include "methods/plain_layer.h"

namespace precis {
namespace {

using namespace test;

constexpr std::size_t kWidth = 16;
constexpr std::size_t kTokens = 40;
constexpr std::size_t kSinks = 3;

Row query_of(const LayerCase& layer, std::size_t head, std::size_t member, std::size_t token) {
  Row row;
  for (std::size_t c = 0; c < kWidth; ++c)
    row.push_back(static_cast<double>(
        layer.observed
            .queries[((head * layer.shape.group + member) * kTokens + token) * kWidth + c]));
  return row;
}

struct Plain {
  std::size_t first = kSinks;  // query
  std::size_t future = 20;
  bool covariance = true;
  double epsilon = 0;
};

// Mean attention over the group, times sizes[member][token].
Row plain_expected(const LayerCase& layer, std::size_t head, const Plain& how,
                   const std::vector<Row>& sizes) {
  const Rope* rope = layer.shape.rope;
  const auto start = static_cast<double>(layer.dense.first_position());
  const auto turn = [&](Row row, double by) {
    return rope == nullptr ? row : turned(*rope, std::move(row), by);
  };
  Row scores(kTokens, 0.0);
  for (std::size_t g = 0; g < layer.shape.group; ++g) {
    std::vector<Row> queries;
    Row mean(kWidth, 0.0);
    for (std::size_t t = how.first; t < kTokens; ++t) {
      queries.push_back(turn(query_of(layer, head, g, t), -(start + static_cast<double>(t))));
      for (std::size_t c = 0; c < kWidth; ++c) mean[c] += queries.back()[c];
    }
    for (double& x : mean) x /= static_cast<double>(queries.size());
    // The mean turn is linear, so it may be applied to every centred query.
    const auto mean_turn = [&](const Row& row) {
      Row sum(kWidth, 0.0);
      for (std::size_t i = 0; i < how.future; ++i) {
        const Row one = turn(row, start + static_cast<double>(kTokens + i));
        for (std::size_t c = 0; c < kWidth; ++c) sum[c] += one[c] / static_cast<double>(how.future);
      }
      return sum;
    };
    std::vector<Row> centred;
    for (Row query : queries) {
      for (std::size_t c = 0; c < kWidth; ++c) query[c] -= mean[c];
      centred.push_back(mean_turn(query));
    }
    const Row expected = mean_turn(mean);
    Row weights(kTokens, 0.0);
    double sum = 0;
    for (std::size_t t = kSinks; t < kTokens; ++t) {
      const Row key = key_of(layer, head, t);
      double variance = 0;
      for (const Row& query : centred)
        variance += std::pow(plain_dot(query, key), 2) / static_cast<double>(centred.size());
      const auto scale = static_cast<double>(layer.shape.rule.scale);
      weights[t] = std::exp(scale * plain_dot(expected, key) +
                            (how.covariance ? scale * scale * variance / 2 : 0.0));
      sum += weights[t];
    }
    for (std::size_t t = kSinks; t < kTokens; ++t)
      scores[t] +=
          (weights[t] / sum + how.epsilon) * sizes[g][t] / static_cast<double>(layer.shape.group);
  }
  return scores;
}

void expect_scores(const std::string& stage, const LayerCase& layer, const Plain& how,
                   const std::function<double(std::size_t, std::size_t, const Row&)>& size) {
  for (std::size_t h = 0; h < 2; ++h) {
    std::vector<Row> sizes(3);
    for (std::size_t g = 0; g < 3; ++g)
      for (std::size_t t = 0; t < kTokens; ++t)
        sizes[g].push_back(size(h, g, value_of(layer, h, t)));
    const Row wanted = plain_expected(layer, h, how, sizes);
    const std::vector<float> scores = scores_of(stage, layer, h);
    float largest = 0;
    for (std::size_t t = kSinks; t < kTokens; ++t) {
      EXPECT_NEAR(static_cast<double>(scores[t]), wanted[t], 2e-4 * wanted[t]) << stage << " " << t;
      largest = std::max(largest, scores[t]);
    }
    for (std::size_t t = 0; t < kSinks; ++t) EXPECT_EQ(scores[t], largest + 1.0f);
  }
}

double norm_of(std::size_t, std::size_t, const Row& value) { return plain_norm(value); }

LayerCase expected_layer(const Rope* rope, const OutputProjection* output = nullptr) {
  return make_layer({{2, kWidth}, 3, {0.25f, 0.0f}, rope, output}, kTokens, Pattern::kRandom, 21);
}

TEST(Expected, RandomRowsMatchTheDefinition) {
  for (const bool interleaved : {false, true})
    for (const std::size_t n_rot : {kWidth, kWidth / 2}) {
      const Rope rope = make_rope(interleaved, n_rot);
      const LayerCase layer = expected_layer(&rope);
      expect_scores("expected(sinks=3,future=20)", layer, {}, norm_of);
      expect_scores("expected(sinks=3,future=1)", layer, {kSinks, 1, true, 0}, norm_of);
      expect_scores("expected(sinks=3,future=20,covariance=off,epsilon=0.25)", layer,
                    {kSinks, 20, false, 0.25}, norm_of);
      expect_scores("expected(sinks=3,future=20,window=10)", layer, {30, 20, true, 0}, norm_of);
    }
}

TEST(Expected, LayersWithoutRopeAreNotTurned) {
  expect_scores("expected(sinks=3,future=20)", expected_layer(nullptr), {}, norm_of);
}

TEST(Expected, OutputsMayWeighIt) {
  const Rope rope = make_rope(false, kWidth);
  const MatrixOutput output(30, 2 * 3 * kWidth, 2);
  const LayerCase layer = expected_layer(&rope, &output);
  expect_scores("expected(sinks=3,future=20,size=output,epsilon=0.01)", layer,
                {kSinks, 20, true, 0.01}, [&](std::size_t h, std::size_t g, const Row& value) {
                  return plain_norm(output.apply(h * 3 + g, value));
                });
  expect_scores("expected(sinks=3,future=20,size=none)", layer, {},
                [](std::size_t, std::size_t, const Row&) { return 1.0; });
}

// Positions count, not tokens: a prompt that begins at 1000 with rows turned by 1000 more.
TEST(Expected, APromptMayBeginAnywhere) {
  const Rope rope = make_rope(false, kWidth);
  const LayerCase at_0 = expected_layer(&rope);
  LayerCase later = expected_layer(&rope);
  later.dense = TailRows(later.shape.kv, 1000);
  later.dense.grow(kTokens);
  RopeTurn turn(rope);
  turn.set_delta(1000);
  std::vector<float> row(kWidth);
  for (std::size_t h = 0; h < 2; ++h)
    for (std::size_t t = 0; t < kTokens; ++t) {
      for (std::size_t c = 0; c < kWidth; ++c)
        row[c] = to_float(at_0.dense.head(h).keys[t * kWidth + c]);
      turn.apply(row.data());
      for (std::size_t c = 0; c < kWidth; ++c) {
        later.dense.key_row(h, t)[c] = to_half(row[c]);
        later.dense.value_row(h, t)[c] = at_0.dense.head(h).values[t * kWidth + c];
      }
    }
  for (std::size_t r = 0; r < later.observed.queries.size(); r += kWidth)
    turn.apply(later.observed.queries.data() + r);
  const std::vector<float> a = scores_of("expected", at_0, 1);
  const std::vector<float> b = scores_of("expected", later, 1);
  // Keys were rounded to f16 again.
  for (std::size_t t = 0; t < kTokens; ++t) EXPECT_NEAR(b[t], a[t], 1e-2f * a[t]) << t;
}

}  // namespace
}  // namespace precis
