// ChunkKV: whole chunks by their mean score, summed over heads.
#include <gtest/gtest.h>

#include <set>

#include "methods/plain_layer.h"

namespace precis {
namespace {

using namespace test;
using Kept = std::vector<std::uint32_t>;

TEST(Chunkkv, ByHand) {
  // Chunks {0, 1}, {2, 3}, {4, 5} and the rest {6}; sums over heads 1 9 | 6 6 | 2 3 | 7.
  const std::vector<std::vector<float>> scores = {{1, 4, 3, 3, 2, 0, 7}, {0, 5, 3, 3, 0, 3, 0}};
  const std::string chunk = "chunk(length=2,recent=0)";
  EXPECT_EQ(plans_of(chunk, scores, 3)[0].kept, (Kept{2, 3, 6}));
  EXPECT_EQ(plans_of(chunk, scores, 5)[1].kept, (Kept{0, 1, 2, 3, 6}));
  // The next chunk does not fit: its best token fills the budget.
  EXPECT_EQ(plans_of(chunk, scores, 4)[0].kept, (Kept{1, 2, 3, 6}));
  EXPECT_EQ(plans_of(chunk, scores, 6)[0].kept, (Kept{0, 1, 2, 3, 5, 6}));
  EXPECT_EQ(plans_of(chunk, scores, 2)[0].targets, (Kept{2, 6}));
}

TEST(Chunkkv, ProtectedTokensBelongToNoChunk) {
  // Token 0 is kept anyway, so chunk {0, 1} scores 1 and chunk {2, 3} scores 2.
  const std::vector<std::vector<float>> scores = {{100, 1, 2, 2, 0}};
  EXPECT_EQ(plans_of("chunk(length=2,recent=1,sinks=1)", scores, 4)[0].kept, (Kept{0, 2, 3, 4}));
}

TEST(Chunkkv, RandomTablesMatchTheDefinition) {
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    const std::size_t n = 40 + seed % 7;
    const std::size_t m = 8 + seed % 20;
    const auto scores = draw_scores(2, n, seed % 2 == 0, seed);
    const auto sum = [&](std::uint32_t t) { return scores[0][t] + scores[1][t]; };
    std::set<std::pair<double, std::uint32_t>> chunks;  // (minus mean, first token)
    for (std::uint32_t first = 0; first + 3 < n; first += 5) {
      double total = 0;
      std::uint32_t count = 0;
      for (std::uint32_t t = first; t < first + 5 && t + 3 < n; ++t, ++count)
        total += static_cast<double>(sum(t));
      chunks.insert({-total / count, first});
    }
    std::set<std::uint32_t> kept;
    for (std::size_t t = n - 3; t < n; ++t) kept.insert(static_cast<std::uint32_t>(t));
    for (const auto& [mean, first] : chunks) {
      std::set<std::pair<float, std::uint32_t>> tokens;
      for (std::uint32_t t = first; t < first + 5 && t + 3 < n; ++t) tokens.insert({-sum(t), t});
      for (const auto& [score, token] : tokens)
        if (kept.size() < m) kept.insert(token);
    }
    const std::vector<HeadPlan> plans = plans_of("chunk(length=5,recent=3)", scores, m);
    for (const HeadPlan& plan : plans) EXPECT_EQ(plan.kept, Kept(kept.begin(), kept.end()));
  }
}

}  // namespace
}  // namespace precis
