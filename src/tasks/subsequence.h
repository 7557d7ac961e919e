// Longest common subsequences, for the scores that compare texts in order. Time grows with the
// product of both lengths, so callers bound them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace precis {

// Length of the longest common subsequence. Memory: that of one row.
std::size_t common_length(std::u32string_view a, std::u32string_view b);

// Finds the words of one longest common subsequence, for many pairs with the same memory.
class CommonWords {
 public:
  // Last word first; valid until the next call. Where several subsequences are longest, it is the
  // one that is found walking back from both ends, taking equal words together, and stepping back
  // in `a` only if that leaves strictly more in common than stepping back in `b`. Memory: a bit for
  // each pair of words.
  std::span<const std::uint32_t> find(std::span<const std::uint32_t> a,
                                      std::span<const std::uint32_t> b);

 private:
  std::vector<bool> more_above_;
  std::vector<std::uint32_t> row_;
  std::vector<std::uint32_t> found_;
};

}  // namespace precis
