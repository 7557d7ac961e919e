#include "methods/kept_tokens.h"

namespace precis {

Tokens open_tokens(const LayerTable& table) {
  const Protection& protection = table.protection;
  Tokens tokens;
  for (std::size_t t = protection.n_sinks; t + protection.n_recent < table.n_tokens; ++t)
    tokens.push_back(static_cast<std::uint32_t>(t));
  return tokens;
}

std::size_t open_entries(const LayerTable& table) {
  return table.entries_per_head() - table.protection.count(table.n_tokens);
}

std::size_t open_entries_of_layer(const LayerTable& table) {
  return table.n_entries - table.n_kv_heads * table.protection.count(table.n_tokens);
}

Tokens with_protected(const LayerTable& table, const Tokens& tokens) {
  const Protection& protection = table.protection;
  Tokens out;
  out.reserve(tokens.size() + protection.count(table.n_tokens));
  for (std::size_t t = 0; t < protection.n_sinks; ++t) out.push_back(static_cast<std::uint32_t>(t));
  out.insert(out.end(), tokens.begin(), tokens.end());
  for (std::size_t t = table.n_tokens - protection.n_recent; t < table.n_tokens; ++t)
    out.push_back(static_cast<std::uint32_t>(t));
  return out;
}

std::vector<double> summed_scores(const LayerTable& table) {
  std::vector<double> sums(table.n_tokens, 0.0);
  for (std::size_t h = 0; h < table.n_kv_heads; ++h) {
    const float* scores = table.scores + h * table.n_tokens;
    for (std::size_t t = 0; t < table.n_tokens; ++t) sums[t] += static_cast<double>(scores[t]);
  }
  return sums;
}

std::vector<HeadPlan> same_plan_for_all(const LayerTable& table, const Tokens& tokens) {
  HeadPlan plan;
  plan.kept = with_protected(table, tokens);
  plan.targets = plan.kept;
  return std::vector<HeadPlan>(table.n_kv_heads, plan);
}

}  // namespace precis
