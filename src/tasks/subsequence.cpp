#include "tasks/subsequence.h"

#include <algorithm>

namespace precis {
namespace {

// One row of the table of common lengths: row[j] becomes that of a's beginning with `item` and of
// the first j of b, from the same without `item`. visit(j, above, left) sees the two neighbours of
// each cell, after which row[j] is set.
template <class Items, class Item, class Visit>
void next_row(std::vector<std::uint32_t>& row, const Items& b, const Item& item, Visit&& visit) {
  std::uint32_t diagonal = 0;
  for (std::size_t j = 1; j < row.size(); ++j) {
    const std::uint32_t above = row[j];
    const std::uint32_t left = row[j - 1];
    visit(j, above, left);
    row[j] = b[j - 1] == item ? diagonal + 1 : std::max(above, left);
    diagonal = above;
  }
}

}  // namespace

std::size_t common_length(std::u32string_view a, std::u32string_view b) {
  std::vector<std::uint32_t> row(b.size() + 1, 0);
  for (const char32_t c : a) next_row(row, b, c, [](std::size_t, std::uint32_t, std::uint32_t) {});
  return row.back();
}

std::span<const std::uint32_t> CommonWords::find(std::span<const std::uint32_t> a,
                                                 std::span<const std::uint32_t> b) {
  found_.clear();
  if (a.size() == 1 || b.size() == 1) {  // lists have thousands of such sentences
    const std::uint32_t word = a.size() == 1 ? a[0] : b[0];
    const auto other = a.size() == 1 ? b : a;
    if (std::find(other.begin(), other.end(), word) != other.end()) found_.push_back(word);
    return found_;
  }
  // Walking back needs no lengths, only which neighbour is larger.
  more_above_.assign(a.size() * b.size(), false);
  row_.assign(b.size() + 1, 0);
  for (std::size_t i = 0; i < a.size(); ++i)
    next_row(row_, b, a[i], [&](std::size_t j, std::uint32_t above, std::uint32_t left) {
      if (above > left) more_above_[i * b.size() + j - 1] = true;
    });
  std::size_t i = a.size();
  std::size_t j = b.size();
  while (i > 0 && j > 0) {
    if (a[i - 1] == b[j - 1]) {
      found_.push_back(a[i - 1]);
      --i;
      --j;
    } else if (more_above_[(i - 1) * b.size() + j - 1]) {
      --i;
    } else {
      --j;
    }
  }
  return found_;
}

}  // namespace precis
