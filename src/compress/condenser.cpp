#include "compress/condenser.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "kernels/rows.h"

namespace precis {
namespace {

// Value of next_layer_ between the start of a layer and its success: a condenser that threw is
// spent.
constexpr std::size_t kSpent = static_cast<std::size_t>(-1);

class Stopwatch {
 public:
  // Milliseconds since construction or since the last lap.
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    const double ms = std::chrono::duration<double, std::milli>(now - start_).count();
    start_ = now;
    return ms;
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// SplitMix64: one step is enough to make neighbouring layers and heads unrelated.
std::uint64_t mix(std::uint64_t seed, std::uint64_t salt) {
  std::uint64_t z = seed + 0x9e3779b97f4a7c15u * (salt + 1);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Percentage for a message, rounded up to a tenth so that following the advice works.
std::string percent_up(std::size_t part, std::size_t whole) {
  const double tenths = std::ceil(1000.0 * static_cast<double>(part) / static_cast<double>(whole));
  return print_number(std::min(tenths / 10, 100.0)) + "%";
}

// A plan that breaks its contract is a bug of the selector, whatever the scores were.
void check_plans(const std::vector<HeadPlan>& plans, const LayerTable& table) {
  PRECIS_CHECK(plans.size() == table.n_kv_heads, plans.size(), " vs ", table.n_kv_heads);
  const auto ascends = [](const std::vector<std::uint32_t>& list) {
    return std::adjacent_find(list.begin(), list.end(), std::greater_equal<>()) == list.end();
  };
  const std::size_t n = table.n_tokens;
  std::size_t total = 0;
  for (std::size_t h = 0; h < plans.size(); ++h) {
    const HeadPlan& plan = plans[h];
    PRECIS_CHECK(ascends(plan.kept) && ascends(plan.targets), "layer ", table.layer, " head ", h);
    PRECIS_CHECK(plan.kept.empty() || plan.kept.back() < n, plan.kept.back(), " of ", n);
    PRECIS_CHECK(
        std::includes(plan.kept.begin(), plan.kept.end(), plan.targets.begin(), plan.targets.end()),
        "layer ", table.layer, " head ", h, ": a target is not kept");
    const auto n_protected =
        std::count_if(plan.kept.begin(), plan.kept.end(),
                      [&](std::uint32_t t) { return table.protection.covers(t, n); });
    PRECIS_CHECK(static_cast<std::size_t>(n_protected) == table.protection.count(n), n_protected,
                 " protected tokens kept of ", table.protection.count(n));
    total += plan.kept.size();
  }
  PRECIS_CHECK(total <= table.entries_per_head * table.n_kv_heads, total, " > ",
               table.entries_per_head, " * ", table.n_kv_heads);
}

// The kept rows of one head. A value that was not merged keeps its bits.
FrozenLayer::Head gather(const TailRows& dense, std::size_t head, const HeadPlan& plan,
                         const HeadMerge* merge) {
  const std::size_t width = dense.shape().head_dim;
  const EntryView rows = dense.head(head);
  FrozenLayer::Head out;
  out.keys.reserve(plan.kept.size() * width);
  out.values.reserve(plan.kept.size() * width);
  out.positions.reserve(plan.kept.size());
  for (std::size_t i = 0; i < plan.kept.size(); ++i) {
    const std::size_t token = plan.kept[i];
    const Half* key = rows.keys + token * width;
    const Half* value = rows.values + token * width;
    out.keys.insert(out.keys.end(), key, key + width);
    out.values.insert(out.values.end(), value, value + width);
    if (merge != nullptr && merge->changed[i] != 0)
      convert_rows(merge->values.data() + i * width, out.values.data() + i * width, width);
    out.positions.push_back(dense.first_position() + static_cast<std::int32_t>(token));
  }
  return out;
}

}  // namespace

Condenser::Condenser(Method method, Budget budget, std::vector<LayerShape> layers,
                     std::size_t n_tokens, std::uint64_t seed, std::size_t fixed_bytes)
    : method_(std::move(method)), layers_(std::move(layers)), n_tokens_(n_tokens), seed_(seed) {
  if (n_tokens == 0)
    throw Error(ErrorCode::kInvalidArgument, "cannot condense an empty prompt: 0 tokens");
  report_.method = method_.spec;
  report_.keep = budget.print();
  report_.n_tokens = n_tokens;
  for (const LayerShape& layer : layers_)
    report_.dense_bytes += layer.kv.n_kv_heads * n_tokens * layer.kv.row_pair_bytes();
  plan_budget(budget, fixed_bytes);
  if (keeps_everything_)
    entries_per_head_ = n_tokens;
  else
    queries_needed_ = method_.queries_needed(n_tokens);
}

void Condenser::plan_budget(const Budget& budget, std::size_t fixed_bytes) {
  keeps_everything_ = true;
  allowed_bytes_ = report_.dense_bytes;
  if (method_.is_full()) return;
  std::size_t amount = budget.bytes(report_.dense_bytes, n_tokens_);
  if (budget.unit == Budget::Unit::kBytes) {
    if (budget.amount < fixed_bytes)
      throw Error(
          ErrorCode::kInvalidArgument,
          concat("keep ", report_.keep, " is ", budget.amount, " bytes, but the layers that ",
                 "cannot be compressed take ", fixed_bytes, ": raise --keep"));
    amount = std::min(budget.amount - fixed_bytes, report_.dense_bytes);
  }
  if (layers_.empty()) {
    report_.skipped = "the model has no layer that can be compressed";
    return;
  }
  if (amount >= report_.dense_bytes) {
    report_.skipped = "the budget covers the whole cache";
    return;
  }
  const Protection protection = method_.selector->protection();
  const std::size_t n_protected = protection.count(n_tokens_);
  if (n_protected >= n_tokens_) {
    report_.skipped =
        concat("the prompt (", n_tokens_, " tokens) is not longer than the protected tokens (",
               protection.n_sinks, " first + ", protection.n_recent, " last)");
    return;
  }
  std::size_t bytes_per_entry = 0;  // of one entry in every head of every layer
  for (const LayerShape& layer : layers_)
    bytes_per_entry += layer.kv.n_kv_heads * entry_bytes(layer);
  entries_per_head_ = amount / bytes_per_entry;
  const std::size_t needed = std::max<std::size_t>(n_protected, 1);
  if (entries_per_head_ < needed) {
    const std::size_t needed_bytes = needed * bytes_per_entry;
    const std::string way_out = budget.unit == Budget::Unit::kBytes
                                    ? std::to_string(needed_bytes + fixed_bytes) + "B"
                                    : percent_up(needed_bytes, report_.dense_bytes);
    throw Error(
        ErrorCode::kInvalidArgument,
        concat("keep ", report_.keep, " leaves ", entries_per_head_, " entries per KV head, but ",
               needed, " are needed (", protection.n_sinks, " first + ", protection.n_recent,
               " last tokens are protected): raise --keep to ", way_out,
               " or more, or lower sinks and recent of the select stage"));
  }
  PRECIS_CHECK(entries_per_head_ < n_tokens_, entries_per_head_, " of ", n_tokens_);
  keeps_everything_ = false;
  allowed_bytes_ = amount;
}

std::size_t Condenser::entry_bytes(const LayerShape& layer) const {
  return layer.kv.row_pair_bytes() + sizeof(std::int32_t) + (uses_bias() ? sizeof(float) : 0);
}

std::vector<HeadView> Condenser::make_heads(std::size_t layer, const TailRows& dense,
                                            const ObservedQueries& observed,
                                            const CancelFlag* cancel) const {
  const LayerShape& shape = layers_[layer];
  const std::size_t n_kv_heads = shape.kv.n_kv_heads;
  if (queries_needed_ > 0) {
    PRECIS_CHECK(observed.n_tokens >= queries_needed_ && observed.n_tokens <= n_tokens_,
                 observed.n_tokens, " captured, needed ", queries_needed_, ", prompt ", n_tokens_);
    PRECIS_CHECK(observed.n_heads == n_kv_heads * shape.group, observed.n_heads, " vs ", n_kv_heads,
                 " * ", shape.group);
    PRECIS_CHECK(observed.head_dim == shape.kv.head_dim, observed.head_dim, " vs ",
                 shape.kv.head_dim);
    const std::size_t n_rows = observed.n_heads * observed.n_tokens;
    PRECIS_CHECK(observed.log_sum_exp.size() == n_rows &&
                     observed.queries.size() == n_rows * observed.head_dim,
                 observed.log_sum_exp.size(), " and ", observed.queries.size(), " for ", n_rows,
                 " rows");
  }
  std::vector<HeadView> heads(n_kv_heads);
  for (std::size_t h = 0; h < n_kv_heads; ++h) {
    HeadView& head = heads[h];
    head.layer = layer;
    head.n_layers = layers_.size();
    head.head = h;
    head.n_kv_heads = n_kv_heads;
    head.n_tokens = n_tokens_;
    head.head_dim = shape.kv.head_dim;
    head.entries = dense.head(h);
    head.rule = shape.rule;
    head.group = shape.group;
    head.seed = mix(mix(seed_, layer), h);
    head.cancel = cancel;
    if (queries_needed_ == 0) continue;
    head.n_queries = observed.n_tokens;
    head.queries =
        observed.queries.data() + h * shape.group * observed.n_tokens * observed.head_dim;
    head.log_sum_exp = observed.log_sum_exp.data() + h * shape.group * observed.n_tokens;
  }
  return heads;
}

std::vector<float> Condenser::score(std::vector<HeadView>& heads, Executor& executor) const {
  std::vector<float> scores(heads.size() * n_tokens_);
  executor.run(heads.size(), [&](std::size_t h, std::size_t) {
    throw_if_cancelled(heads[h].cancel);
    const std::span<float> own(scores.data() + h * n_tokens_, n_tokens_);
    method_.scorer->score(heads[h], own);
    for (std::size_t t = 0; t < n_tokens_; ++t)
      if (!std::isfinite(own[t]))
        throw Error(ErrorCode::kInternal,
                    concat("score of token ", t, " in layer ", heads[h].layer, ", head ", h, " is ",
                           own[t], ": the model's keys, queries or values are not finite"));
  });
  return scores;
}

std::vector<HeadPlan> Condenser::select(std::size_t layer, const std::vector<float>& scores) const {
  LayerTable table;
  table.layer = layer;
  table.n_layers = layers_.size();
  table.n_kv_heads = layers_[layer].kv.n_kv_heads;
  table.n_tokens = n_tokens_;
  table.scores = scores.data();
  table.protection = method_.selector->protection();
  table.entries_per_head = entries_per_head_;
  std::vector<HeadPlan> plans = method_.selector->select(table);
  check_plans(plans, table);
  return plans;
}

std::vector<HeadMerge> Condenser::merge(std::vector<HeadView>& heads,
                                        const std::vector<HeadPlan>& plans,
                                        Executor& executor) const {
  std::vector<HeadMerge> merges;
  if (method_.merger == nullptr) return merges;
  merges.resize(heads.size());
  executor.run(heads.size(), [&](std::size_t h, std::size_t) {
    throw_if_cancelled(heads[h].cancel);
    const std::size_t n_kept = plans[h].kept.size();
    HeadMerge merged = method_.merger->merge(heads[h], plans[h]);
    PRECIS_CHECK(merged.changed.size() == n_kept && merged.mass_ratio.size() == n_kept &&
                     merged.values.size() == n_kept * heads[h].head_dim,
                 n_kept, " kept");
    merges[h] = std::move(merged);
  });
  return merges;
}

void Condenser::record(std::size_t layer, const FrozenLayer& frozen) {
  const LayerShape& shape = layers_[layer];
  std::vector<std::size_t> entries;
  for (std::size_t h = 0; h < shape.kv.n_kv_heads; ++h) entries.push_back(frozen.n_entries(h));
  report_.entries.push_back(std::move(entries));
  report_.kept_bytes += frozen.bytes();
  PRECIS_CHECK(report_.kept_bytes <= allowed_bytes_, report_.kept_bytes, " > ", allowed_bytes_,
               " after layer ", layer, " of ", report_.method);
}

FrozenLayer Condenser::condense_layer(std::size_t layer, const TailRows& dense,
                                      const ObservedQueries& observed, Executor& executor,
                                      const CancelFlag* cancel) {
  const std::size_t expected = std::exchange(next_layer_, kSpent);
  PRECIS_CHECK(layer == expected && layer < layers_.size(), "layer ", layer, ", expected ",
               expected, " of ", layers_.size());
  PRECIS_CHECK(dense.shape() == layers_[layer].kv, "layer ", layer, " has another shape");
  PRECIS_CHECK(dense.size() == n_tokens_, dense.size(), " vs ", n_tokens_);
  throw_if_cancelled(cancel);
  Stopwatch watch;
  if (keeps_everything_) {
    FrozenLayer whole = FrozenLayer::from_tail(dense);
    report_.freeze_ms += watch.lap();
    record(layer, whole);
    next_layer_ = layer + 1;
    return whole;
  }

  std::vector<HeadView> heads = make_heads(layer, dense, observed, cancel);
  const std::vector<float> scores = score(heads, executor);
  report_.score_ms += watch.lap();
  throw_if_cancelled(cancel);
  const std::vector<HeadPlan> plans = select(layer, scores);
  report_.select_ms += watch.lap();
  const std::vector<HeadMerge> merges = merge(heads, plans, executor);
  std::vector<std::vector<float>> biases;
  if (uses_bias()) biases = method_.compensator->compensate(plans, merges);
  report_.merge_ms += watch.lap();

  std::vector<FrozenLayer::Head> kept(heads.size());
  executor.run(heads.size(), [&](std::size_t h, std::size_t) {
    throw_if_cancelled(cancel);
    kept[h] = gather(dense, h, plans[h], merges.empty() ? nullptr : &merges[h]);
    if (biases.empty()) return;
    for (const float bias : biases[h])
      if (!std::isfinite(bias))
        throw Error(ErrorCode::kInternal,
                    concat("a bias in layer ", layer, ", head ", h, " is ", bias,
                           ": the model's keys or queries are not finite"));
    kept[h].bias = std::move(biases[h]);
  });
  FrozenLayer frozen(dense.shape(), std::move(kept), dense.first_position());
  for (const HeadMerge& merged : merges) {
    report_.n_routed += merged.n_routed;
    report_.n_dropped += merged.n_dropped;
    report_.n_floored += merged.n_floored;
  }
  report_.freeze_ms += watch.lap();
  record(layer, frozen);
  next_layer_ = layer + 1;
  return frozen;
}

}  // namespace precis
