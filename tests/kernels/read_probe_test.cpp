// The probe must read every word: a word it skipped would make memory look faster than it is.
#include "kernels/read_probe.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "kernels/problem.h"

namespace precis::testing {
namespace {

class ReadProbe : public ::testing::TestWithParam<std::int64_t> {
 protected:
  UseInstructionSet use_{GetParam()};
};

TEST_P(ReadProbe, EveryWordCounts) {
  std::mt19937_64 draw(5);
  for (const std::size_t n : {0u, 1u, 7u, 8u, 31u, 32u, 33u, 64u, 255u, 256u, 257u, 1000u}) {
    std::vector<std::uint64_t> words(n);
    std::uint64_t expected = 0;
    for (std::uint64_t& w : words) expected ^= w = draw();
    ASSERT_EQ(read_words(words.data(), n), expected) << n;
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint64_t change = draw() | 1;
      words[i] ^= change;
      ASSERT_EQ(read_words(words.data(), n), expected ^ change) << i << " of " << n;
      words[i] ^= change;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Target, ReadProbe, ::testing::ValuesIn(instruction_sets()),
                         [](const auto& info) { return hwy::TargetName(info.param); });

}  // namespace
}  // namespace precis::testing
