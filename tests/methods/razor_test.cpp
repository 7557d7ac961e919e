// RazorAttention: which heads are kept whole, by hand.
#include <gtest/gtest.h>

#include <cmath>

#include "compress/condenser.h"
#include "compress/layer_case.h"
#include "methods/registry.h"

namespace precis {
namespace {

constexpr std::size_t kTokens = 200;
constexpr LayerShape kShape{{3, 16}, 2, {0.25f, 0}};

// Three layers of three heads. Attention peaks: 0.02 everywhere, but near 1 in head 1 of layer 0,
// 0.8 in head 2 of layer 2, and 1 at ten tokens and 0 elsewhere in head 0 of layer 1.
std::vector<test::LayerCase> layers() {
  std::vector<test::LayerCase> out;
  for (std::uint32_t l = 0; l < 3; ++l) {
    out.push_back(test::make_layer(kShape, kTokens, test::Pattern::kRandom, l));
    for (std::size_t h = 0; h < 3; ++h)
      for (std::size_t t = 0; t < kTokens; ++t) {
        double peak = 0.02;
        if (l == 0 && h == 1) peak = 0.99;
        if (l == 2 && h == 2) peak = 0.8;
        if (l == 1 && h == 0) peak = t % 20 == 5 ? 1 : 1e-6;
        out[l].observed.log_peaks[h * kTokens + t] = static_cast<float>(std::log(peak));
      }
  }
  return out;
}

struct Kept {
  std::vector<FrozenLayer> layers;
  std::size_t m = 0;  // entries per head
};

Kept condense(const std::string& keep) {
  Condenser condenser(builtin_methods().parse("razor(sinks=4,recent=8)"), Budget::parse(keep),
                      std::vector<LayerShape>(3, kShape), kTokens, 1);
  SerialExecutor executor;
  const std::vector<test::LayerCase> cases = layers();
  for (std::size_t l = 0; l < 3; ++l)
    condenser.condense_layer(l, cases[l].dense, cases[l].observed, executor);
  return {condenser.finish(executor), condenser.entries_per_head()};
}

std::vector<std::int32_t> sinks_and_last(std::int32_t n) {
  std::vector<std::int32_t> out = {0, 1, 2, 3};
  constexpr auto kEnd = static_cast<std::int32_t>(kTokens);
  for (std::int32_t t = kEnd - n; t < kEnd; ++t) out.push_back(t);
  return out;
}

TEST(Razor, ReadsThePromptTwice) {
  const Observation needed = builtin_methods().parse("razor").observation(100);
  EXPECT_EQ(needed.repeat_chunk, 2048u);
  EXPECT_EQ(needed.n_queries, 0u);
}

TEST(Razor, KeepsTheHeadsThatLookUpTheText) {
  // A buffer of 200 / 20 and the first four in each of 9 heads: 126 entries. Two heads whole: 372
  // more.
  const auto [frozen, m] = condense("50");
  EXPECT_GT(9 * m, 7 * 14 + 200 + 14u);
  EXPECT_LT(9 * m, 7 * 14 + 200 + 200u);
  for (std::size_t l = 0; l < 3; ++l)
    for (std::size_t h = 0; h < 3; ++h) {
      const std::vector<std::int32_t> kept = test::kept_positions(frozen[l], h);
      if (l == 0 && h == 1)
        EXPECT_EQ(kept.size(), kTokens);
      else if (l == 2 && h == 2)
        // The rest of the budget, the newest tokens.
        EXPECT_EQ(kept, sinks_and_last(static_cast<std::int32_t>(9 * m) - 7 * 14 - 200 - 4));
      else
        EXPECT_EQ(kept, sinks_and_last(10)) << "layer " << l << " head " << h;
    }
}

TEST(Razor, BuffersOfASmallBudgetAreAllAlike) {
  const auto [frozen, m] = condense("14");
  EXPECT_LT(m, 14u);
  for (std::size_t l = 0; l < 3; ++l)
    for (std::size_t h = 0; h < 3; ++h)
      EXPECT_EQ(test::kept_positions(frozen[l], h),
                sinks_and_last(static_cast<std::int32_t>(m) - 4));
}

// A head that looks at the same few tokens for everything is no retrieval head.
TEST(Razor, MostOfThePromptCounts) {
  const std::vector<FrozenLayer> frozen = condense("70").layers;
  EXPECT_EQ(frozen[0].n_entries(1), kTokens);
  EXPECT_EQ(frozen[2].n_entries(2), kTokens);
  // Its mean, 0.05, is still above 0.02: it is the next.
  EXPECT_GT(frozen[1].n_entries(0), 14u);
  EXPECT_EQ(frozen[1].n_entries(1), 14u);
}

}  // namespace
}  // namespace precis
