// The lists of tokens that selectors are made of: the protected tokens, and the best of the others.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "compress/stage.h"

namespace precis {

using Tokens = std::vector<std::uint32_t>;

struct ProtectionParams {
  int recent = 16;
  int sinks = 0;

  template <class V>
  void fields(V&& v) {
    v("recent", recent, 0, 1 << 20, "last tokens that are always kept");
    v("sinks", sinks, 0, 1 << 20, "first tokens that are always kept");
  }

  Protection protection() const {
    return {static_cast<std::size_t>(sinks), static_cast<std::size_t>(recent)};
  }
};

// Leaves the `count` highest scores of `tokens`, ascending; ties go to the smaller number.
template <class Score>
void keep_highest(Tokens& tokens, std::size_t count, const Score* scores) {
  const auto before = [scores](std::uint32_t a, std::uint32_t b) {
    return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
  };
  if (count < tokens.size()) {
    std::nth_element(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count),
                     tokens.end(), before);
    tokens.resize(count);
  }
  std::sort(tokens.begin(), tokens.end());
}

// The tokens that are not protected, ascending.
Tokens open_tokens(const LayerTable& table);

// Entries per head beside the protected ones.
std::size_t open_entries(const LayerTable& table);
// The same of all heads together, for heads that share them.
std::size_t open_entries_of_layer(const LayerTable& table);

// First tokens + tokens + last tokens. REQUIRES: tokens are open, ascending.
Tokens with_protected(const LayerTable& table, const Tokens& tokens);

// Scores summed over the heads, [n_tokens]; they order tokens as the mean does.
std::vector<double> summed_scores(const LayerTable& table);

// Every head keeps these open tokens beside the protected ones, and all may receive merges.
std::vector<HeadPlan> same_plan_for_all(const LayerTable& table, const Tokens& tokens);

}  // namespace precis
