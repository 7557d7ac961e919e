#include "compress/layer_shares.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

namespace precis {
namespace {

using Counts = std::vector<std::size_t>;

Counts share_out(const std::vector<double>& wanted, std::size_t total, std::size_t least,
                 std::size_t most) {
  const std::vector<ShareBounds> bounds(wanted.size(), {least, most});
  return precis::share_out(wanted, total, bounds);
}

TEST(ShareOut, EveryShareHasItsOwnBounds) {
  const std::vector<ShareBounds> bounds = {{0, 4}, {6, 100}, {2, 2}};
  EXPECT_EQ(precis::share_out({50, 0, 9}, 30, bounds), (Counts{4, 24, 2}));
  EXPECT_EQ(precis::share_out({50, 0, 9}, 9, bounds), (Counts{1, 6, 2}));
}

TEST(ShareOut, KeepsWhatAlreadyFits) {
  EXPECT_EQ(share_out({3, 5, 4}, 12, 1, 9), (Counts{3, 5, 4}));
  EXPECT_EQ(share_out({4}, 4, 0, 9), (Counts{4}));
}

TEST(ShareOut, StaysBetweenTheBounds) {
  EXPECT_EQ(share_out({100, 0, 0}, 30, 5, 20), (Counts{20, 5, 5}));
  EXPECT_EQ(share_out({-7, -7, 1e300}, 30, 5, 20), (Counts{5, 5, 20}));
  EXPECT_EQ(share_out({1, 1, 1}, 15, 5, 20), (Counts{5, 5, 5}));
  EXPECT_EQ(share_out({1, 1, 1}, 60, 5, 20), (Counts{20, 20, 20}));
}

TEST(ShareOut, GivesInProportionToTheWishes) {
  EXPECT_EQ(share_out({10, 30}, 80, 0, 1000), (Counts{20, 60}));
  EXPECT_EQ(share_out({20, 60}, 40, 0, 1000), (Counts{10, 30}));
}

// Whatever is wished: the sum is exact, bounds hold, and more is never given for a smaller wish by
// more than the last whole step.
TEST(ShareOut, SumsUpForAnyWishes) {
  std::mt19937 draw(5);
  for (int round = 0; round < 2000; ++round) {
    const std::size_t n = 1 + draw() % 40;
    const std::size_t least = draw() % 50;
    const std::size_t most = least + draw() % 5000;
    const std::size_t total = least * n + (most > least ? draw() % ((most - least) * n + 1) : 0);
    std::vector<double> wanted(n);
    for (double& w : wanted)
      w = std::ldexp(static_cast<double>(draw() % 1000), static_cast<int>(draw() % 12)) - 50;
    const Counts out = share_out(wanted, total, least, most);
    ASSERT_EQ(std::accumulate(out.begin(), out.end(), std::size_t{0}), total);
    for (std::size_t i = 0; i < n; ++i) {
      ASSERT_GE(out[i], least);
      ASSERT_LE(out[i], most);
      for (std::size_t k = 0; k < n; ++k) {
        if (wanted[i] >= wanted[k]) {
          ASSERT_GE(out[i] + n, out[k]) << wanted[i] << " " << wanted[k];
        }
      }
    }
  }
}

}  // namespace
}  // namespace precis
