#include "methods/pooled_tokens.h"

#include <algorithm>
#include <iterator>

namespace precis {
namespace {

// Numbers entries so that ties go to the earlier token, then to the earlier head.
std::uint32_t entry_number(const LayerTable& table, std::size_t head, std::uint32_t token) {
  return token * static_cast<std::uint32_t>(table.n_kv_heads) + static_cast<std::uint32_t>(head);
}

}  // namespace

std::vector<Tokens> pooled_tokens(const LayerTable& table, std::size_t floor) {
  const std::size_t n_heads = table.n_kv_heads;
  const Tokens open = open_tokens(table);
  std::vector<Tokens> kept(n_heads);
  std::vector<float> scores(n_heads * table.n_tokens);  // by entry_number()
  Tokens others;
  for (std::size_t h = 0; h < n_heads; ++h) {
    const float* own = table.scores + h * table.n_tokens;
    kept[h] = open;
    keep_highest(kept[h], floor, own);
    Tokens rest;
    std::set_difference(open.begin(), open.end(), kept[h].begin(), kept[h].end(),
                        std::back_inserter(rest));
    for (const std::uint32_t token : rest) {
      others.push_back(entry_number(table, h, token));
      scores[others.back()] = own[token];
    }
  }
  keep_highest(others, open_entries_of_layer(table) - n_heads * floor, scores.data());
  for (const std::uint32_t entry : others)
    kept[entry % n_heads].push_back(entry / static_cast<std::uint32_t>(n_heads));
  for (Tokens& tokens : kept) std::sort(tokens.begin(), tokens.end());
  return kept;
}

}  // namespace precis
