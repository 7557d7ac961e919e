// Ada-KV and select=layer: entries pooled over the heads of a layer, with a floor for each.
#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "methods/plain_layer.h"

namespace precis {
namespace {

using namespace test;
using Kept = std::vector<std::uint32_t>;

const std::vector<std::vector<float>> kUneven = {{9, 8, 7, 6, 5, 0}, {1, 4, 2, 3, 1, 0}};

TEST(Adakv, ByHand) {
  // 3 open entries per head, 6 in all, floor 0.34 * 3 = 1: head 1 is sure of its 4, the other five
  // are 9, 8, 7, 6, 5.
  const std::vector<HeadPlan> plans = plans_of("adakv(recent=1,alpha=0.34)", kUneven, 4);
  EXPECT_EQ(plans[0].kept, (Kept{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(plans[1].kept, (Kept{1, 5}));
  // floor 2: head 1 has its 4 and 3, head 0 the other four.
  const std::vector<HeadPlan> higher = plans_of("adakv(recent=1,alpha=0.67)", kUneven, 4);
  EXPECT_EQ(higher[0].kept, (Kept{0, 1, 2, 3, 5}));
  EXPECT_EQ(higher[1].kept, (Kept{1, 3, 5}));
  EXPECT_EQ(higher[1].targets, higher[1].kept);
}

TEST(Adakv, ExtremesAreNoFloorAndEvenHeads) {
  EXPECT_EQ(plans_of("adakv(recent=1,alpha=0)", kUneven, 3)[1].kept, (Kept{5}));
  const std::vector<HeadPlan> even = plans_of("adakv(recent=1,alpha=1)", kUneven, 4);
  const std::vector<HeadPlan> head = plans_of("head(recent=1)", kUneven, 4);
  for (std::size_t h = 0; h < 2; ++h) EXPECT_EQ(even[h].kept, head[h].kept);
}

TEST(SelectLayer, FloorIsInEntries) {
  EXPECT_EQ(plans_of("layer(recent=1,floor=2)", kUneven, 4)[1].kept, (Kept{1, 3, 5}));
  // A floor above the budget leaves the heads even.
  EXPECT_EQ(plans_of("layer(recent=1,floor=8)", kUneven, 4)[1].kept, (Kept{1, 2, 3, 5}));
}

TEST(SelectLayer, TiesGoToTheEarlierTokenThenHead) {
  const std::vector<std::vector<float>> equal(2, std::vector<float>(5, 1.0f));
  const std::vector<HeadPlan> plans = plans_of("layer(recent=0,floor=0)", equal, 1);
  EXPECT_EQ(plans[0].kept, (Kept{0}));
  EXPECT_EQ(plans[1].kept, (Kept{0}));
}

TEST(Adakv, RandomTablesMatchTheDefinition) {
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    const std::size_t n = 30;
    const std::size_t per_head = 5 + seed % 15;  // open entries
    const auto scores = draw_scores(3, n, seed % 2 == 0, seed);
    const auto floor = static_cast<std::size_t>(0.2 * static_cast<double>(per_head));
    // (minus score, token, head), so that a set is in order of preference.
    using Entry = std::tuple<float, std::uint32_t, std::size_t>;
    std::set<Entry> pool;
    std::vector<std::set<std::uint32_t>> kept(3);
    for (std::size_t h = 0; h < 3; ++h) {
      std::set<Entry> own;
      for (std::uint32_t t = 2; t < n - 3; ++t) own.insert({-scores[h][t], t, h});
      for (std::size_t i = 0; i < floor; ++i) {
        kept[h].insert(std::get<1>(*own.begin()));
        own.erase(own.begin());
      }
      pool.insert(own.begin(), own.end());
    }
    auto entry = pool.begin();
    for (std::size_t i = 0; i < 3 * (per_head - floor); ++i, ++entry)
      kept[std::get<2>(*entry)].insert(std::get<1>(*entry));
    const std::vector<HeadPlan> plans = plans_of("adakv(recent=3,sinks=2)", scores, per_head + 5);
    for (std::size_t h = 0; h < 3; ++h) {
      kept[h].insert({0, 1, 27, 28, 29});
      EXPECT_EQ(plans[h].kept, Kept(kept[h].begin(), kept[h].end()));
    }
  }
}

}  // namespace
}  // namespace precis
