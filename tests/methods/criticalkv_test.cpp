// CriticalKV: two stages, the second weighed by the norm of what W_O makes of a value.
#include <gtest/gtest.h>

#include <set>

#include "methods/plain_layer.h"

namespace precis {
namespace {

using namespace test;
using Kept = std::vector<std::uint32_t>;
using Table = std::vector<std::vector<float>>;

TEST(Criticalkv, ByHand) {
  const Table scores = {{9, 8, 7, 6, 5, 4, 0}};
  const Table norms = {{1, 1, 1, 1, 3, 2, 9}};
  // 4 entries: the last token, by the score floor(0.5 * 4) - 1 = 1, token 0; of the others' weights
  // 8, 7, 6, 15, 8 the best two, the tie going to the earlier token.
  EXPECT_EQ(plans_of("critical(recent=1,epsilon=0)", scores, 4, norms)[0].kept, (Kept{0, 1, 4, 6}));
  // floor(0.75 * 4) - 1 = 2 by the score.
  EXPECT_EQ(plans_of("critical(recent=1,epsilon=0,first=0.75)", scores, 4, norms)[0].kept,
            (Kept{0, 1, 4, 6}));
  EXPECT_EQ(plans_of("critical(recent=1,epsilon=0,first=1)", scores, 4, norms)[0].kept,
            (Kept{0, 1, 2, 6}));
  // None by the score: weights 9, 8, 7, 6, 15, 8.
  EXPECT_EQ(plans_of("critical(recent=1,epsilon=0,first=0)", scores, 3, norms)[0].kept,
            (Kept{0, 4, 6}));
  // A large epsilon leaves the norms alone.
  EXPECT_EQ(plans_of("critical(recent=1,epsilon=1000,first=0)", scores, 3, norms)[0].kept,
            (Kept{4, 5, 6}));
}

TEST(Criticalkv, EqualNormsAreThePlainSelectors) {
  for (const bool ties : {false, true}) {
    const Table scores = draw_scores(3, 60, ties, 5);
    const Table norms(3, std::vector<float>(60, 2.0f));
    for (const std::size_t m : {5u, 17u, 40u}) {
      const auto same = [&](const char* ours, const char* plain) {
        const std::vector<HeadPlan> a = plans_of(ours, scores, m, norms);
        const std::vector<HeadPlan> b = plans_of(plain, scores, m);
        for (std::size_t h = 0; h < 3; ++h) EXPECT_EQ(a[h].kept, b[h].kept) << ours << " " << m;
      };
      same("critical(recent=4,sinks=1)", "head(recent=4,sinks=1)");
      same("criticalada(recent=4,sinks=1)", "adakv(recent=4,sinks=1)");
      same("criticalada(recent=4,alpha=0.7)", "adakv(recent=4,alpha=0.7)");
    }
  }
}

// The definition, one token at a time.
std::set<std::uint32_t> plain_stages(const std::vector<float>& scores,
                                     const std::vector<float>& norms, std::size_t n_kept,
                                     std::size_t n_recent, std::size_t sure, double first) {
  const std::size_t n = scores.size();
  std::set<std::uint32_t> kept;
  for (std::size_t t = n - n_recent; t < n; ++t) kept.insert(static_cast<std::uint32_t>(t));
  const auto n_first = std::max<std::size_t>(
      n_recent + sure, static_cast<std::size_t>(std::floor(first * static_cast<double>(n_kept))));
  while (kept.size() < n_kept) {
    const bool by_score = kept.size() < n_first;
    std::uint32_t best = 0;
    double highest = -1;
    for (std::uint32_t t = 0; t < n; ++t) {
      const double value = static_cast<double>(scores[t]) + (by_score ? 0.0 : 1e-4);
      const double weighed = by_score ? value : value * static_cast<double>(norms[t]);
      if (kept.count(t) != 0 || weighed <= highest) continue;
      best = t;
      highest = weighed;
    }
    kept.insert(best);
  }
  return kept;
}

TEST(Criticalkv, RandomTablesFollowTheDefinition) {
  for (const std::uint32_t seed : {1u, 2u, 3u}) {
    const Table scores = draw_scores(2, 50, false, seed);
    Table norms = draw_scores(2, 50, false, seed + 10);
    for (const std::size_t m : {6u, 11u, 30u}) {
      const auto check = [&](const HeadPlan& plan, std::size_t h, std::size_t sure, double first) {
        const std::set<std::uint32_t> ours(plan.kept.begin(), plan.kept.end());
        EXPECT_EQ(ours, plain_stages(scores[h], norms[h], plan.kept.size(), 5, sure, first));
      };
      const auto plain = plans_of("critical(recent=5,first=0.4)", scores, m, norms);
      for (std::size_t h = 0; h < 2; ++h) {
        EXPECT_EQ(plain[h].kept.size(), m);
        check(plain[h], h, 0, 0.4);
      }
      const auto shares = plans_of("adakv(recent=5,alpha=0.3)", scores, m);
      const auto pooled = plans_of("criticalada(recent=5,alpha=0.3)", scores, m, norms);
      const auto sure = static_cast<std::size_t>(0.3 * static_cast<double>(m - 5));
      for (std::size_t h = 0; h < 2; ++h) {
        EXPECT_EQ(pooled[h].kept.size(), shares[h].kept.size());
        check(pooled[h], h, sure, 0.5);
      }
    }
  }
}

}  // namespace
}  // namespace precis
