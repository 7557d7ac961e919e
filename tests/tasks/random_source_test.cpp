#include "tasks/random_source.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include "tasks/word_list.h"

namespace precis {
namespace {

TEST(RandomSource, DrawsUniformly) {
  RandomSource random(1);
  constexpr std::size_t kDraws = 60000;
  std::size_t counts[6] = {};
  for (std::size_t i = 0; i < kDraws; ++i) ++counts[random.below(6)];
  for (const std::size_t n : counts) EXPECT_NEAR(static_cast<double>(n), 10000, 500);  // 5 sigma
  for (int i = 0; i < 100; ++i) EXPECT_EQ(random.below(1), 0u);
  // Of three quarters of all numbers; without rejection a third of them would come twice as often.
  const std::uint64_t bound = std::uint64_t{3} << 62;
  std::size_t n_low = 0;
  for (std::size_t i = 0; i < 30000; ++i)
    if (random.below(bound) < std::uint64_t{1} << 62) ++n_low;
  EXPECT_NEAR(static_cast<double>(n_low), 10000, 500);
}

TEST(RandomSource, ShufflesUniformly) {
  RandomSource random(2);
  std::size_t where[4][4] = {};
  for (int i = 0; i < 40000; ++i) {
    std::vector<std::size_t> items = {0, 1, 2, 3};
    random.shuffle(items);
    for (std::size_t at = 0; at < 4; ++at) ++where[items[at]][at];
  }
  for (const auto& row : where)
    for (const std::size_t n : row) EXPECT_NEAR(static_cast<double>(n), 10000, 500);
  std::vector<int> none;
  random.shuffle(none);
  EXPECT_TRUE(none.empty());
}

TEST(RandomSource, EverySeedNameAndIndexHasItsOwnSequence) {
  std::set<std::uint64_t> first;
  for (std::uint64_t seed = 0; seed < 10; ++seed)
    for (const char* name : {"", "vt", "cwe", "ab", "ba"})
      for (std::uint64_t index = 0; index < 10; ++index) {
        first.insert(RandomSource(seed, name, index).bits());
        EXPECT_EQ(RandomSource(seed, name, index).bits(), RandomSource(seed, name, index).bits());
      }
  EXPECT_EQ(first.size(), 500u);
}

TEST(WordList, HasManyPlainWordsAndNoneTwice) {
  EXPECT_GE(plain_nouns().size(), 500u);
  EXPECT_GE(plain_adjectives().size(), 250u);
  std::set<std::string> all;
  for (const auto* list : {&plain_nouns(), &plain_adjectives()})
    for (const std::string& word : *list) {
      EXPECT_TRUE(all.insert(word).second) << word;
      EXPECT_GE(word.size(), 3u) << word;
      EXPECT_TRUE(std::all_of(word.begin(), word.end(), [](char c) {
        return c >= 'a' && c <= 'z';
      })) << word;
    }
}

}  // namespace
}  // namespace precis
