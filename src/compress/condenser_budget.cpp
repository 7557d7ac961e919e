// What a budget means for each layer, as far as that is known before any layer is seen.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "compress/condenser.h"
#include "compress/layer_shares.h"

namespace precis {
namespace {

// Percentage for a message, rounded up to a tenth so that following the advice works.
std::string percent_up(std::size_t part, std::size_t whole) {
  const double tenths = std::ceil(1000.0 * static_cast<double>(part) / static_cast<double>(whole));
  return print_number(std::min(tenths / 10, 100.0)) + "%";
}

}  // namespace

void Condenser::plan_budget(const Budget& budget, std::size_t fixed_bytes) {
  keeps_everything_ = true;
  std::size_t whole = 0;  // the whole cache in the wanted row types
  for (const LayerShape& layer : layers_)
    whole += layer.kv.n_kv_heads * row_bytes(rows_, layer.kv.head_dim, n_tokens_);
  // Layers whose keys must stay finer may exceed the wanted types here, never f16.
  allowed_bytes_ = std::max(report_.dense_bytes, whole);
  if (method_.is_full()) return;
  std::size_t amount = budget.bytes(whole, n_tokens_);
  if (budget.unit == Budget::Unit::kBytes) {
    if (budget.amount < fixed_bytes)
      throw Error(
          ErrorCode::kInvalidArgument,
          concat("keep ", report_.keep, " is ", budget.amount, " bytes, but the layers that ",
                 "cannot be compressed take ", fixed_bytes, ": raise --keep"));
    amount = std::min(budget.amount - fixed_bytes, whole);
  }
  if (layers_.empty()) {
    report_.skipped = "the model has no layer that can be compressed";
    return;
  }
  const Protection protection = method_.selector->protection();
  const std::size_t n_protected = protection.count(n_tokens_);
  // With decode=step a budget may be larger than the prompt.
  const std::size_t token_bytes = whole / n_tokens_;
  if (method_.steps && budget.unit == Budget::Unit::kTokens)
    amount = std::min(budget.amount, std::numeric_limits<std::size_t>::max() / token_bytes) *
             token_bytes;
  if (method_.steps && budget.unit == Budget::Unit::kBytes) amount = budget.amount - fixed_bytes;
  if (method_.steps ? has_room_to_grow(amount) : amount >= whole) {
    report_.skipped = "the budget covers the whole cache";
    const std::size_t needed = std::max<std::size_t>(protection.n_sinks + protection.n_recent, 1);
    if (method_.steps && step_entries_ < needed)
      refuse_few_entries(budget, step_entries_, needed, whole, fixed_bytes);
    return;
  }
  if (n_protected >= n_tokens_) {
    // What comes later would go beyond a budget that is not one of this prompt's cache.
    if (method_.steps && budget.unit != Budget::Unit::kRatio)
      refuse_few_entries(budget, amount / all_layers_bytes(1),
                         protection.n_sinks + protection.n_recent, whole, fixed_bytes);
    report_.skipped =
        concat("the prompt (", n_tokens_, " tokens) is not longer than the protected tokens (",
               protection.n_sinks, " first + ", protection.n_recent, " last)",
               method_.steps ? "; nothing is evicted later either" : "");
    return;
  }
  // The largest m that fits; bytes grow with m.
  std::size_t m = amount * n_tokens_ / whole;
  while (m > 0 && all_layers_bytes(m) > amount) --m;
  entries_per_head_ = m;
  const std::size_t needed = std::max<std::size_t>(n_protected, 1);
  if (m < needed) refuse_few_entries(budget, m, needed, whole, fixed_bytes);
  PRECIS_CHECK(entries_per_head_ < n_tokens_, entries_per_head_, " of ", n_tokens_);
  keeps_everything_ = false;
  allowed_bytes_ = amount;
  plan_layers(needed);
}

std::size_t Condenser::all_layers_bytes(std::size_t n) const {
  std::size_t bytes = 0;
  for (const LayerShape& layer : layers_)
    bytes += layer_bytes(layer, rows_, n * layer.kv.n_kv_heads);
  return bytes;
}

bool Condenser::has_room_to_grow(std::size_t bytes) {
  if (all_layers_bytes(n_tokens_) > bytes) return false;
  // Rows of f16: every entry costs the same.
  step_entries_ = bytes / all_layers_bytes(1);
  allowed_bytes_ = bytes;
  return true;
}

void Condenser::refuse_few_entries(const Budget& budget, std::size_t n_entries, std::size_t needed,
                                   std::size_t whole, std::size_t fixed_bytes) const {
  const Protection protection = method_.selector->protection();
  const std::size_t needed_bytes = all_layers_bytes(needed);
  std::string way_out = percent_up(needed_bytes, whole);
  if (budget.unit == Budget::Unit::kBytes)
    way_out = std::to_string(needed_bytes + fixed_bytes) + "B";
  else if (budget.unit == Budget::Unit::kTokens && method_.steps)  // may exceed the prompt
    way_out = std::to_string(needed_bytes / (whole / n_tokens_) + 1);
  throw Error(ErrorCode::kInvalidArgument,
              concat("keep ", report_.keep, " leaves ", n_entries, " entries per KV head, but ",
                     needed, " are needed (", protection.n_sinks, " first + ", protection.n_recent,
                     " last tokens are protected): raise --keep to ", way_out,
                     " or more, or lower sinks and recent of the select stage"));
}

// Bytes of a layer grow with its entries in steps of whole groups at most, so that a sum of entries
// that fits when all layers are alike may be a little too many bytes when they are not.
void Condenser::plan_layers(std::size_t least) {
  std::vector<std::size_t> shares(layers_.size(), entries_per_head_);
  if (method_.layers != nullptr && !method_.layers->sees_scores()) {
    const std::vector<ShareBounds> bounds(layers_.size(), {least, n_tokens_ - 1});
    shares = share_out(
        method_.layers->entries(layers_.size(), entries_per_head_, method_.selector->protection()),
        entries_per_head_ * layers_.size(), bounds);
    const auto bytes = [&] {
      std::size_t sum = 0;
      for (std::size_t l = 0; l < layers_.size(); ++l)
        sum += layer_bytes(layers_[l], rows_, shares[l] * layers_[l].kv.n_kv_heads);
      return sum;
    };
    while (bytes() > allowed_bytes_) --*std::max_element(shares.begin(), shares.end());
  }
  layer_entries_.clear();
  for (std::size_t l = 0; l < layers_.size(); ++l)
    layer_entries_.push_back(shares[l] * layers_[l].kv.n_kv_heads);
}

std::size_t Condenser::layer_bytes(const LayerShape& layer, const RowTypes& rows,
                                   std::size_t n) const {
  const std::size_t n_numbers =
      (uses_bias() ? 1 : 0) + (method_.steps ? step_rules_.n_fields() : 0);
  const std::size_t extra = sizeof(std::int32_t) + n_numbers * sizeof(float);
  // Heads may share the entries unevenly.
  return most_row_bytes(rows, layer.kv.head_dim, n, layer.kv.n_kv_heads) + n * extra;
}

std::size_t Condenser::most_entries(const LayerShape& layer, const RowTypes& rows,
                                    std::size_t bytes) const {
  const std::size_t n_heads = layer.kv.n_kv_heads;
  std::size_t low = 0;
  std::size_t high = n_tokens_;
  while (low < high) {
    const std::size_t middle = (low + high + 1) / 2;
    if (layer_bytes(layer, rows, middle * n_heads) <= bytes)
      low = middle;
    else
      high = middle - 1;
  }
  return low * n_heads;
}

// A layer that needs finer keys keeps fewer entries: its bytes are its share of the budget.
std::size_t Condenser::entries_of_layer(std::size_t layer, const RowTypes& rows) const {
  if (rows == rows_) return layer_entries_[layer];
  const LayerShape& shape = layers_[layer];
  return most_entries(shape, rows, layer_bytes(shape, rows_, layer_entries_[layer]));
}

}  // namespace precis
