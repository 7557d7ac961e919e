#include "compress/stage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>

#include "base/error.h"
#include "compress/layer_case.h"

namespace precis {
namespace {

using test::LayerCase;
using test::make_layer;
using test::Pattern;

LayerCase layer_of(std::size_t n, std::size_t group, float softcap = 0) {
  return make_layer({{2, 16}, group, {0.25f, softcap}}, n, Pattern::kRandom, 7);
}

TEST(HeadView, WindowMassIsTheReferenceAttention) {
  for (const std::size_t group : {1u, 3u})
    for (const std::size_t window : {1u, 7u, 8u, 9u, 32u, 40u, 500u})
      for (const float softcap : {0.0f, 2.0f}) {
        const LayerCase layer = layer_of(40, group, softcap);
        const std::size_t used = std::min<std::size_t>(window, 40);
        for (std::size_t h = 0; h < 2; ++h) {
          HeadView head = test::view_head(layer, h);
          const std::span<const float> mass = head.window_mass(window);
          const std::vector<float> rows = test::query_rows(layer, h, 40 - used);
          const std::vector<Visible> visible = test::causal(40 - used, 40);
          std::vector<double> expected(40);
          reference::attention_mass({rows.data(), used, group, 16, group * 16}, layer.dense.head(h),
                                    layer.shape.rule, visible.data(), expected.data());
          ASSERT_EQ(mass.size(), 40u);
          double total = 0;
          for (std::size_t j = 0; j < 40; ++j) {
            EXPECT_NEAR(static_cast<double>(mass[j]), expected[j], 1e-4 * expected[j] + 1e-6);
            total += static_cast<double>(mass[j]);
          }
          EXPECT_NEAR(total, static_cast<double>(used * group), 1e-3);
        }
      }
}

// Rows are turned as complex numbers, in double.
std::vector<double> turned(const std::vector<double>& row, const Rope& rope, double delta) {
  std::vector<double> out = row;
  for (std::size_t i = 0; i < rope.n_pairs(); ++i) {
    const std::complex<double> pair(row[rope.first_channel(i)], row[rope.second_channel(i)]);
    const std::complex<double> now = pair * std::polar(1.0, delta * rope.frequencies[i]);
    out[rope.first_channel(i)] = now.real();
    out[rope.second_channel(i)] = now.imag();
  }
  return out;
}

TEST(HeadView, WindowMassAtOtherPlaces) {
  constexpr std::size_t kTokens = 40, kWindow = 9, kWidth = 16;
  for (const bool interleaved : {false, true}) {
    const Rope rope{12, interleaved, {1.0, 0.5, 0.2, 0.1, 0.03, 0.01}, 1.0f};
    const LayerCase layer = layer_of(kTokens, 3);
    HeadView head = test::view_head(layer, 1);
    const std::span<const float> before = head.window_mass(kWindow);
    HeadView moved = test::view_head(layer, 1);
    std::vector<std::int32_t> places;  // every third token is kept
    for (std::size_t t = 0; t < kTokens; ++t)
      places.push_back(static_cast<std::int32_t>((t + 2) / 3));
    moved.places = places.data();
    EXPECT_TRUE(std::ranges::equal(moved.window_mass(kWindow), before)) << "without a rope";
    moved = test::view_head(layer, 1);
    moved.places = places.data();
    moved.rope = &rope;
    const std::span<const float> mass = moved.window_mass(kWindow);

    const auto numbers = [](const auto* row, const auto& number) {
      std::vector<double> out;
      for (std::size_t c = 0; c < kWidth; ++c) out.push_back(static_cast<double>(number(row[c])));
      return out;
    };
    std::vector<double> expected(kTokens, 0.0);
    for (std::size_t t = kTokens - kWindow; t < kTokens; ++t)
      for (std::size_t g = 0; g < 3; ++g) {
        const std::vector<double> query =
            turned(numbers(moved.query(g, t), [](float x) { return x; }), rope,
                   places[t] - static_cast<double>(t));
        std::vector<double> weights;
        double sum = 0;
        for (std::size_t j = 0; j <= t; ++j) {
          const Half* stored = layer.dense.head(1).keys + j * kWidth;
          const std::vector<double> key =
              turned(numbers(stored, [](Half x) { return to_float(x); }), rope,
                     places[j] - static_cast<double>(j));
          double logit = 0;
          for (std::size_t c = 0; c < kWidth; ++c) logit += 0.25 * query[c] * key[c];
          weights.push_back(std::exp(logit));
          sum += weights.back();
        }
        for (std::size_t j = 0; j <= t; ++j) expected[j] += weights[j] / sum;
      }
    double change = 0;
    for (std::size_t j = 0; j < kTokens; ++j) {
      EXPECT_NEAR(static_cast<double>(mass[j]), expected[j], 3e-3 * expected[j]);
      change = std::max(change, std::abs(expected[j] - static_cast<double>(before[j])));
    }
    EXPECT_GT(change, 0.05);
  }
}

TEST(HeadView, ReadsTheLastQueriesOfALargerOrSmallerCapture) {
  const LayerCase layer = layer_of(40, 2);
  HeadView all = test::view_head(layer, 1);
  // The same last 10 queries, captured on their own.
  std::vector<float> queries;
  std::vector<float> sums;
  for (std::size_t g = 0; g < 2; ++g)
    for (std::size_t t = 30; t < 40; ++t) {
      queries.insert(queries.end(), all.query(g, t), all.query(g, t) + 16);
      sums.push_back(all.query_log_sum_exp(g, t));
    }
  HeadView few = test::view_head(layer, 1);
  few.n_queries = 10;
  few.queries = queries.data();
  few.log_sum_exp = sums.data();
  const std::span<const float> a = all.window_mass(10);
  const std::span<const float> b = few.window_mass(10);
  EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end()));
}

TEST(HeadView, RemembersEachWindow) {
  const LayerCase layer = layer_of(40, 2);
  HeadView head = test::view_head(layer, 0);
  const std::span<const float> small = head.window_mass(4);
  const std::vector<float> before(small.begin(), small.end());
  for (std::size_t window = 5; window < 30; ++window) head.window_mass(window);
  EXPECT_EQ(head.window_mass(4).data(), small.data());
  EXPECT_TRUE(std::equal(before.begin(), before.end(), small.begin()));
  EXPECT_EQ(head.window_mass(40).data(), head.window_mass(4000).data());
}

TEST(HeadView, ValueNorms) {
  const LayerCase layer = layer_of(40, 2);
  HeadView head = test::view_head(layer, 1);
  const std::span<const float> norms = head.value_norms();
  ASSERT_EQ(norms.size(), 40u);
  for (std::size_t j = 0; j < 40; ++j) {
    double sum = 0;
    for (std::size_t c = 0; c < 16; ++c) {
      const double x = static_cast<double>(to_float(head.entries.values[j * 16 + c]));
      sum += x * x;
    }
    EXPECT_NEAR(static_cast<double>(norms[j]), std::sqrt(sum), 1e-5 * std::sqrt(sum));
  }
}

TEST(HeadView, WindowPassStopsWhenCancelled) {
  const LayerCase layer = layer_of(40, 2);
  CancelFlag cancel{true};
  HeadView head = test::view_head(layer, 1);
  head.cancel = &cancel;
  try {
    head.window_mass(8);
    FAIL() << "not cancelled";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCancelled);
  }
}

TEST(HeadViewDeathTest, TooFewQueriesAreABug) {
  const LayerCase layer = layer_of(40, 2);
  HeadView head = test::view_head(layer, 1);
  head.n_queries = 10;
  EXPECT_DEATH(head.window_mass(11), "check failed");
}

TEST(Protection, CountsAndCovers) {
  for (std::size_t n = 1; n < 12; ++n)
    for (std::size_t sinks = 0; sinks < 6; ++sinks)
      for (std::size_t recent = 0; recent < 6; ++recent) {
        const Protection protection{sinks, recent};
        std::size_t covered = 0;
        for (std::size_t t = 0; t < n; ++t) covered += protection.covers(t, n) ? 1 : 0;
        EXPECT_EQ(covered, protection.count(n)) << n << " " << sinks << " " << recent;
      }
}

TEST(HeadView, BlockAttentionComesFromTheQueriesWhereItWasNotObserved) {
  for (const std::size_t n : {20u, 100u}) {
    const LayerCase layer = make_layer({{2, 16}, 3, {0.25f, 0.0f}}, n, Pattern::kRandom, 8);
    HeadView head = view_head(layer, 1);
    const std::size_t width = std::min<std::size_t>(32, n);
    const std::span<const float> logs = head.block_attention(32);
    ASSERT_EQ(logs.size(), n * width);
    for (std::size_t t = 0; t < n; ++t) {
      double own = 0;  // the row's mass inside of its block
      for (std::size_t i = 0; i < width; ++i) {
        const float value = logs[t * width + i];
        if (i > t % width)
          ASSERT_EQ(value, -std::numeric_limits<float>::infinity());
        else
          own += std::exp(static_cast<double>(value));
      }
      if (t < width) {  // the first block is all that the row sees
        ASSERT_NEAR(own, 3.0, 1e-4) << t;
      }
      ASSERT_LT(own, 3.0 + 1e-4) << t;
    }
    // Observed, it is taken as it is, and the queries are not needed.
    HeadView given = view_head(layer, 1);
    const std::vector<float> copy(logs.begin(), logs.end());
    given.observed_block = width;
    given.observed_block_attention = copy.data();
    given.n_queries = 1;
    EXPECT_EQ(given.block_attention(32).data(), copy.data());
  }
}

TEST(HeadViewDeathTest, BlockAttentionNeedsAllQueries) {
  const LayerCase layer = make_layer({{2, 16}, 3, {0.25f, 0.0f}}, 40, Pattern::kRandom, 8);
  HeadView head = view_head(layer, 0);
  head.n_queries = 39;
  EXPECT_DEATH(head.block_attention(32), "39 captured of 40");
}

TEST(ObservedQueries, ServesWhatItHolds) {
  ObservedQueries observed;
  observed.n_tokens = 32;
  observed.block = 16;
  EXPECT_TRUE(observed.serves({32, 16}, 100));
  EXPECT_TRUE(observed.serves({0, 0}, 100));
  EXPECT_FALSE(observed.serves({33, 0}, 100));
  EXPECT_FALSE(observed.serves({32, 8}, 100));
  EXPECT_FALSE(observed.serves({32, 32}, 100));
  observed.block = 0;
  EXPECT_FALSE(observed.serves({32, 16}, 100));
  EXPECT_TRUE(observed.serves({40, 16}, 32));  // all queries of the prompt serve every block
}

}  // namespace
}  // namespace precis
