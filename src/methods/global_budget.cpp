// One budget for all layers: a layer keeps as many entries as it has among the best of all layers
// and heads. For any score that compares between layers and heads, such as attention.
//
//   layers=global   beside select=layer the kept set is exactly the best entries of the whole
//   cache,
//                   but for the floor of every head. Under a selector that treats heads alike the
//                   layers compete and the heads of a layer do not.
//
// A pilot on real models found it worth as much as the score: with the scores of KVzip (arXiv
// 2505.23416, which pools heads and layers too), 10 % of a cache answered 14 of 18 needle questions
// where equal heads answered none.
//
// Cost: as layers come, the entries that fall below the best so far are given up (condenser.h), so
// that there is never more than one whole budget and one layer (all dense layers with a residual
// stage, docs/DESIGN.md). Finding the threshold reads the scores of all layers so far: L^2 / 2
// times what a layer's are.
//
// Ties go to the earlier token, then to the earlier layer and head.
#include <algorithm>
#include <tuple>

#include "compress/method.h"
#include "methods/kept_tokens.h"

namespace precis {

void register_global_budget(Registry& registry);

namespace {

struct GlobalParams {
  template <class V>
  void fields(V&&) {}
};

struct Entry {
  float score;
  std::uint32_t token;
  std::uint32_t layer;
  std::uint32_t head;

  bool before(const Entry& other) const {
    if (score != other.score) return score > other.score;
    return std::tie(token, layer, head) < std::tie(other.token, other.layer, other.head);
  }
};

// Appends the open entries of the layer that no floor keeps anyway.
void append_rivals(const LayerTable& table, std::vector<Entry>& rivals) {
  for (std::size_t h = 0; h < table.n_kv_heads; ++h) {
    const float* scores = table.scores + h * table.n_tokens;
    Tokens sure = open_tokens(table);
    const Tokens open = sure;
    keep_highest(sure, table.floor, scores);
    std::size_t next = 0;
    for (const std::uint32_t token : open) {
      if (next < sure.size() && sure[next] == token)
        ++next;
      else
        rivals.push_back({scores[token], token, static_cast<std::uint32_t>(table.layer),
                          static_cast<std::uint32_t>(h)});
    }
  }
}

class GlobalBudget final : public LayerBudgets {
 public:
  explicit GlobalBudget(const GlobalParams&) {}

  bool sees_scores() const override { return true; }

  std::vector<double> divide(std::span<const LayerTable> done, std::span<const double>,
                             std::size_t n_entries) const override {
    std::vector<double> out;
    std::vector<Entry> rivals;
    std::size_t n_sure = 0;
    for (const LayerTable& table : done) {
      const std::size_t n_protected = table.protection.count(table.n_tokens);
      const std::size_t n_open = table.n_tokens - n_protected;
      const std::size_t own = table.n_kv_heads * (n_protected + std::min(table.floor, n_open));
      out.push_back(static_cast<double>(own));
      n_sure += own;
      append_rivals(table, rivals);
    }
    const std::size_t n_free = n_entries > n_sure ? n_entries - n_sure : 0;
    if (n_free < rivals.size()) {
      std::nth_element(rivals.begin(), rivals.begin() + static_cast<std::ptrdiff_t>(n_free),
                       rivals.end(), [](const Entry& a, const Entry& b) { return a.before(b); });
      rivals.resize(n_free);
    }
    // `layer` counts all layers, of which done[] has the first ones.
    for (const Entry& entry : rivals) ++out[entry.layer];
    return out;
  }
};

}  // namespace

void register_global_budget(Registry& registry) {
  registry.add_stage<GlobalBudget, GlobalParams>(
      StageKind::kLayers, "global", "generic",
      "one budget for all layers: as many entries as are among the best of all");
}

}  // namespace precis
