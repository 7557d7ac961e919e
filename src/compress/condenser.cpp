#include "compress/condenser.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "compress/layer_shares.h"
#include "compress/row_choice.h"
#include "compress/stopwatch.h"

namespace precis {
namespace {

// Value of next_layer_ between the start of a layer and its success: a condenser that threw is
// spent.
constexpr std::size_t kSpent = static_cast<std::size_t>(-1);

// SplitMix64: one step is enough to make neighbouring layers and heads unrelated.
std::uint64_t mix(std::uint64_t seed, std::uint64_t salt) {
  std::uint64_t z = seed + 0x9e3779b97f4a7c15u * (salt + 1);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

double mean_of(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value);
  return sum / static_cast<double>(values.size());
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
  PRECIS_CHECK(total <= table.n_entries, total, " > ", table.n_entries);
}

}  // namespace

Condenser::Condenser(Method method, Budget budget, std::vector<LayerShape> layers,
                     std::size_t n_tokens, std::uint64_t seed, std::size_t fixed_bytes,
                     RowTypes rows)
    : method_(std::move(method)),
      layers_(std::move(layers)),
      n_tokens_(n_tokens),
      seed_(seed),
      rows_(rows) {
  if (n_tokens == 0)
    throw Error(ErrorCode::kInvalidArgument, "cannot condense an empty prompt: 0 tokens");
  report_.method = method_.spec;
  report_.keep = budget.print();
  report_.n_tokens = n_tokens;
  for (const LayerShape& layer : layers_) {
    for (RowType type : {rows.keys, rows.values})
      if (!fits(type, layer.kv.head_dim))
        throw Error(ErrorCode::kUnsupported,
                    concat("rows of type ", row_type_name(type), " need a head size that is a ",
                           "multiple of ", kBlockChannels, ", the model's is ", layer.kv.head_dim,
                           ": use f16"));
    report_.dense_bytes += layer.kv.n_kv_heads * n_tokens * layer.kv.row_pair_bytes();
  }
  if (method_.steps) {
    if (!(rows == RowTypes{}))
      throw Error(
          ErrorCode::kUnsupported,
          concat("decode=step overwrites single rows, but rows of type ", row_type_name(rows.keys),
                 " and ", row_type_name(rows.values), " are packed in groups of ", kGroupEntries,
                 ": use f16 for keys and values, or decode=once"));
    step_rules_ = method_.step_rules();
  }
  plan_budget(budget, fixed_bytes);
  if (keeps_everything_) entries_per_head_ = n_tokens;
  if (!keeps_everything_ || step_entries_ > 0) observation_ = method_.observation(n_tokens);
  if (rows.keys != RowType::kF16)
    observation_.n_queries = std::max(observation_.n_queries, std::min(kTrialQueries, n_tokens));
}

RowTypes Condenser::choose_rows(std::vector<HeadView>& heads, Executor& executor) {
  RowTypes rows = rows_;
  double error = 0;
  const std::size_t needed =
      keeps_everything_ ? 0 : method_.selector->protection().count(n_tokens_) + 1;
  while (rows.keys != RowType::kF16) {
    std::vector<KeyTrial> trials(heads.size());
    executor.run(heads.size(), [&](std::size_t h, std::size_t) {
      throw_if_cancelled(heads[h].cancel);
      trials[h] = try_keys(heads[h], rows.keys);
    });
    KeyTrial layer;
    for (const KeyTrial& trial : trials) {
      layer.error += trial.error;
      layer.energy += trial.energy;
    }
    error = layer.relative();
    if (error <= kMaxKeyError) break;
    RowTypes next = rows;
    next.keys = finer(rows.keys);
    // Without room for the protected tokens the layer stays as it is; the report shows its error.
    if (!keeps_everything_ && entries_of_layer(heads.front().layer, next) < needed * heads.size())
      break;
    rows = next;
    error = 0;
  }
  report_.key_types.push_back(rows.keys);
  report_.key_errors.push_back(error);
  return rows;
}

std::vector<HeadView> Condenser::make_heads(std::size_t layer, const TailRows& dense,
                                            const ObservedQueries& observed,
                                            const CancelFlag* cancel) const {
  const LayerShape& shape = layers_[layer];
  const std::size_t n_kv_heads = shape.kv.n_kv_heads;
  if (!observation_.none()) {
    PRECIS_CHECK(observed.serves(observation_, n_tokens_) && observed.n_tokens <= n_tokens_,
                 observed.n_tokens, " queries and blocks of ", observed.block, " captured, needed ",
                 observation_.n_queries, " and ", observation_.block, ", prompt ", n_tokens_);
    PRECIS_CHECK(observed.n_heads == n_kv_heads * shape.group, observed.n_heads, " vs ", n_kv_heads,
                 " * ", shape.group);
    PRECIS_CHECK(observed.head_dim == shape.kv.head_dim, observed.head_dim, " vs ",
                 shape.kv.head_dim);
    const std::size_t n_rows = observed.n_heads * observed.n_tokens;
    PRECIS_CHECK(observed.log_sum_exp.size() == n_rows &&
                     observed.queries.size() == n_rows * observed.head_dim,
                 observed.log_sum_exp.size(), " and ", observed.queries.size(), " for ", n_rows,
                 " rows");
    PRECIS_CHECK(observed.block_attention.size() == n_kv_heads * n_tokens_ * observed.block,
                 observed.block_attention.size(), " for blocks of ", observed.block);
    PRECIS_CHECK(observed.repeat_chunk == 0 || observed.log_peaks.size() == n_kv_heads * n_tokens_,
                 observed.log_peaks.size(), " for ", n_kv_heads, " heads of ", n_tokens_,
                 " tokens");
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
    head.first_position = dense.first_position();
    head.rope = shape.rope;
    head.output = shape.output;
    head.group = shape.group;
    head.seed = mix(mix(seed_, layer), h);
    head.cancel = cancel;
    if (observation_.none()) continue;
    head.n_queries = observed.n_tokens;
    head.queries =
        observed.queries.data() + h * shape.group * observed.n_tokens * observed.head_dim;
    head.log_sum_exp = observed.log_sum_exp.data() + h * shape.group * observed.n_tokens;
    head.observed_block = observed.block;
    head.observed_block_attention =
        observed.block_attention.data() + h * n_tokens_ * observed.block;
    if (observed.repeat_chunk != 0) head.log_peaks = observed.log_peaks.data() + h * n_tokens_;
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

std::vector<float> Condenser::output_norms(std::vector<HeadView>& heads, Executor& executor) const {
  if (!method_.selector->reads_output_norms()) return {};
  std::vector<float> means(heads.size() * n_tokens_);
  executor.run(heads.size(), [&](std::size_t h, std::size_t) {
    const std::span<const float> norms = heads[h].output_norms();
    for (std::size_t t = 0; t < n_tokens_; ++t) {
      double sum = 0;
      for (std::size_t g = 0; g < heads[h].group; ++g)
        sum += static_cast<double>(norms[g * n_tokens_ + t]);
      means[h * n_tokens_ + t] = static_cast<float>(sum / static_cast<double>(heads[h].group));
    }
  });
  return means;
}

LayerTable Condenser::table_of(std::size_t layer, const Ranking& ranking,
                               std::size_t n_entries) const {
  LayerTable table;
  table.layer = layer;
  table.n_layers = layers_.size();
  table.n_kv_heads = layers_[layer].kv.n_kv_heads;
  table.n_tokens = n_tokens_;
  table.scores = ranking.scores.data();
  if (!ranking.output_norms.empty()) table.output_norms = ranking.output_norms.data();
  table.protection = method_.selector->protection();
  table.floor = method_.selector->floor();
  table.n_entries = n_entries;
  table.hidden_cosine = ranking.hidden_cosine;
  return table;
}

std::vector<HeadPlan> Condenser::select(const LayerTable& table) const {
  std::vector<HeadPlan> plans = method_.selector->select(table);
  check_plans(plans, table);
  return plans;
}

std::vector<std::vector<std::int32_t>> Condenser::places_of(
    const std::vector<HeadPlan>& plans) const {
  std::vector<std::vector<std::int32_t>> places;
  if (method_.positioner == nullptr || method_.merger == nullptr) return places;
  for (const HeadPlan& plan : plans)
    places.push_back(method_.positioner->places(plan.kept, n_tokens_));
  return places;
}

std::vector<HeadMerge> Condenser::merge(std::vector<HeadView>& heads,
                                        const std::vector<HeadPlan>& plans,
                                        Executor& executor) const {
  std::vector<HeadMerge> merges;
  if (method_.merger == nullptr || (method_.steps && !step_rules_.merger->merges_prompt()))
    return merges;
  merges.resize(heads.size());
  executor.run(heads.size(), [&](std::size_t h, std::size_t) {
    throw_if_cancelled(heads[h].cancel);
    const std::size_t n_kept = plans[h].kept.size();
    HeadMerge merged = method_.merger->merge(heads[h], plans[h]);
    PRECIS_CHECK(merged.changed.size() == n_kept && merged.mass_ratio.size() == n_kept &&
                     merged.n_merged.size() == n_kept &&
                     merged.values.size() == n_kept * heads[h].head_dim,
                 n_kept, " kept");
    PRECIS_CHECK(merged.keys_changed.empty() ? merged.keys.empty()
                                             : merged.keys_changed.size() == n_kept &&
                                                   merged.keys.size() == merged.values.size(),
                 n_kept, " kept, ", merged.keys_changed.size(), " flags of keys");
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
  if (layer < carries_.size())
    for (const StepCarry& carry : carries_[layer])
      report_.kept_bytes += carry.fields.size() * sizeof(float);
  PRECIS_CHECK(report_.kept_bytes <= allowed_bytes_, report_.kept_bytes, " > ", allowed_bytes_,
               " after layer ", layer, " of ", report_.method);
}

std::vector<std::size_t> Condenser::divide(std::span<const LayerTable> done,
                                           std::size_t n_entries) const {
  std::vector<ShareBounds> bounds;
  std::size_t least = 0;
  std::size_t most = 0;
  for (const LayerTable& table : done) {
    // Entries of all heads; the floor is a promise of the selector's that a small budget breaks.
    const std::size_t needed =
        std::max<std::size_t>(table.protection.count(n_tokens_), 1) * table.n_kv_heads;
    const std::size_t promised =
        (table.protection.count(n_tokens_) + table.floor) * table.n_kv_heads;
    bounds.push_back({std::clamp(promised, needed, std::max(needed, n_entries / layers_.size())),
                      n_tokens_ * table.n_kv_heads});
    bounds.back().least = std::min(bounds.back().least, bounds.back().most);
    least += bounds.back().least;
    most += bounds.back().most;
  }
  const std::vector<double> wanted = method_.layers->divide(done, weights_, n_entries);
  PRECIS_CHECK(wanted.size() == done.size(), wanted.size(), " vs ", done.size());
  return share_out(wanted, std::clamp(n_entries, least, most), bounds);
}

void Condenser::give_up(std::size_t layer, std::size_t n_entries) {
  Layer& own = drafts_[layer];
  if (own.draft.n_entries() <= n_entries) return;
  const std::vector<float> masked = own.draft.masked(own.ranking.scores, n_tokens_);
  LayerTable table = table_of(layer, own.ranking, n_entries);
  table.scores = masked.data();
  own.draft.drop_to(select(table));
  trim_carries(layer);
}

void Condenser::trim_carries(std::size_t layer) {
  if (!method_.steps) return;
  for (std::size_t h = 0; h < layers_[layer].kv.n_kv_heads; ++h)
    keep_tokens(carries_[layer][h], drafts_[layer].draft.entries()[h].tokens);
}

std::size_t Condenser::make_room(std::size_t layer, const Ranking& ranking) {
  std::vector<LayerTable> done;
  for (std::size_t l = 0; l < layer; ++l) done.push_back(table_of(l, drafts_[l].ranking, 0));
  done.push_back(table_of(layer, ranking, 0));
  weights_.push_back(method_.layers->weigh(done.back()));
  PRECIS_CHECK(std::isfinite(weights_.back()), "layer ", layer, " weighs ", weights_.back());
  std::size_t n_entries = 0;
  for (const std::size_t n : layer_entries_) n_entries += n;
  const std::vector<std::size_t> shares = divide(done, n_entries);
  for (std::size_t l = 0; l < layer; ++l) give_up(l, shares[l]);
  return shares[layer];
}

// Layers whose keys need a finer type, or whose heads share groups of rows unevenly, take more than
// the entries were counted with. The least that layers may keep fits: choose_rows() takes a finer
// type only where the protected tokens have room in the layer's even share of the bytes.
void Condenser::fit_bytes() {
  std::vector<LayerTable> done;
  std::size_t n_entries = 0;
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    done.push_back(table_of(l, drafts_[l].ranking, 0));
    n_entries += layer_entries_[l];
  }
  while (true) {
    const std::vector<std::size_t> shares = divide(done, n_entries);
    std::size_t bytes = 0;
    for (std::size_t l = 0; l < layers_.size(); ++l)
      bytes += layer_bytes(layers_[l], drafts_[l].draft.rows(), shares[l]);
    if (bytes <= allowed_bytes_) {
      for (std::size_t l = 0; l < layers_.size(); ++l) give_up(l, shares[l]);
      return;
    }
    // In proportion, and a little less so that a few rounds are enough.
    const double part = static_cast<double>(allowed_bytes_) / static_cast<double>(bytes);
    const auto fewer = static_cast<std::size_t>(static_cast<double>(n_entries) * part);
    PRECIS_CHECK(n_entries > layers_.size(), bytes, " bytes do not fit in ", allowed_bytes_);
    n_entries = std::min(fewer, n_entries - 1);
  }
}

void Condenser::add_biases(std::size_t first, std::size_t n) {
  std::vector<LayerEntries> entries;
  for (std::size_t l = first; l < first + n; ++l) entries.push_back(drafts_[l].draft.entries());
  std::vector<std::vector<std::vector<float>>> biases = method_.compensator->compensate(entries);
  PRECIS_CHECK(biases.size() == n, biases.size(), " vs ", n);
  for (std::size_t l = 0; l < n; ++l) {
    for (std::size_t h = 0; h < biases[l].size(); ++h)
      for (const float bias : biases[l][h])
        if (!std::isfinite(bias))
          throw Error(ErrorCode::kInternal,
                      concat("a bias in layer ", frozen_.size() + first + l, ", head ", h, " is ",
                             bias, ": the model's keys or queries are not finite"));
    drafts_[first + l].draft.set_biases(std::move(biases[l]));
  }
}

void Condenser::note_held() {
  std::size_t bytes = 0;
  for (const Layer& layer : drafts_) bytes += layer.draft.bytes() + layer.ranking.bytes();
  for (const Waiting& layer : waiting_) bytes += layer.bytes();
  for (const std::vector<StepCarry>& layer : carries_)
    for (const StepCarry& carry : layer)
      bytes += carry.fields.size() * sizeof(float) + carry.tokens.size() * sizeof(std::uint32_t);
  report_.most_held_bytes = std::max(report_.most_held_bytes, bytes);
}

void Condenser::condense_layer(std::size_t layer, const TailRows& dense,
                               const ObservedQueries& observed, Executor& executor,
                               const CancelFlag* cancel) {
  const std::size_t expected = std::exchange(next_layer_, kSpent);
  PRECIS_CHECK(layer == expected && layer < layers_.size(), "layer ", layer, ", expected ",
               expected, " of ", layers_.size());
  PRECIS_CHECK(dense.shape() == layers_[layer].kv, "layer ", layer, " has another shape");
  PRECIS_CHECK(dense.size() == n_tokens_, dense.size(), " vs ", n_tokens_);
  throw_if_cancelled(cancel);
  Stopwatch watch;
  std::vector<HeadView> heads = make_heads(layer, dense, observed, cancel);
  const RowTypes rows = choose_rows(heads, executor);
  if (keeps_everything_) {
    keep_layer(heads, dense, rows, executor, cancel);
    report_.freeze_ms += watch.lap();
    next_layer_ = layer + 1;
    return;
  }
  report_.freeze_ms += watch.lap();
  if (observation_.repeat_chunk != 0) report_.repeat_ms += observed.repeat_ms;
  Ranking ranking{score(heads, executor), output_norms(heads, executor),
                  observation_.hidden_cosine ? mean_of(observed.hidden_cosines) : 0};
  if (!std::isfinite(ranking.hidden_cosine))
    throw Error(ErrorCode::kInternal, concat("the hidden states of layer ", layer,
                                             " are not finite: the model's weights are damaged"));
  report_.score_ms += watch.lap();
  throw_if_cancelled(cancel);
  const bool shared = shares_by_scores();
  const std::size_t n_entries = shared ? make_room(layer, ranking) : entries_of_layer(layer, rows);
  std::vector<HeadPlan> plans = select(table_of(layer, ranking, n_entries));
  report_.select_ms += watch.lap();
  const std::vector<std::vector<std::int32_t>> places = places_of(plans);
  // What was observed at the tokens' own places is of no use then.
  if (!places.empty()) heads = make_heads(layer, dense, observed, cancel);
  for (std::size_t h = 0; h < places.size(); ++h) heads[h].places = places[h].data();
  for (std::size_t h = 0; h < heads.size(); ++h)
    heads[h].scores = ranking.scores.data() + h * n_tokens_;
  std::vector<HeadMerge> merges = merge(heads, plans, executor);
  report_.merge_ms += watch.lap();
  std::vector<ResidualEntries> residuals;
  if (method_.residual != nullptr && !shared)
    residuals =
        split_layer(table_of(layer, ranking, n_entries), rows, heads, plans, merges, executor);
  report_.residual_ms += watch.lap();
  for (const HeadMerge& merged : merges) {
    report_.n_routed += merged.n_routed;
    report_.n_dropped += merged.n_dropped;
    report_.n_floored += merged.n_floored;
  }
  if (method_.steps) carry_steps(heads, plans, executor);
  report_.merge_ms += watch.lap();
  if (!shared) ranking = {};
  drafts_.push_back({LayerDraft(dense, plans, merges, rows, shared,
                                {method_.positioner.get(), layers_[layer].rope}, executor, cancel),
                     std::move(ranking)});
  if (!residuals.empty()) drafts_.back().draft.set_residuals(residuals, executor);
  if (shared && method_.residual != nullptr && can_hold_out())
    waiting_.push_back({dense, observed});
  if (shared) note_held();
  if (uses_bias() && !method_.compensator->needs_all_layers()) add_biases(drafts_.size() - 1, 1);
  if (!stays_open()) freeze_drafts(executor, cancel);
  report_.freeze_ms += watch.lap();
  next_layer_ = layer + 1;
}

void Condenser::keep_layer(std::vector<HeadView>& heads, const TailRows& dense,
                           const RowTypes& rows, Executor& executor, const CancelFlag* cancel) {
  std::vector<FrozenLayer::Head> kept(heads.size());
  executor.run(heads.size(), [&](std::size_t h, std::size_t) {
    throw_if_cancelled(cancel);
    kept[h].rows = PackedList::from_rows(rows, dense.shape().head_dim, dense.head(h));
  });
  if (step_entries_ > 0) {
    const std::vector<float> scores = score(heads, executor);
    std::vector<HeadPlan> plans(heads.size());
    for (std::size_t h = 0; h < heads.size(); ++h) {
      heads[h].scores = scores.data() + h * n_tokens_;
      for (std::uint32_t t = 0; t < n_tokens_; ++t) plans[h].kept.push_back(t);
    }
    carry_steps(heads, plans, executor);
  }
  frozen_.emplace_back(dense.shape(), std::move(kept), dense.first_position());
}

void Condenser::carry_steps(std::vector<HeadView>& heads, const std::vector<HeadPlan>& plans,
                            Executor& executor) {
  std::vector<StepCarry>& carries = carries_.emplace_back(heads.size());
  executor.run(heads.size(), [&](std::size_t h, std::size_t) {
    throw_if_cancelled(heads[h].cancel);
    carries[h] = carry_step(step_rules_, heads[h], plans[h]);
  });
}

void Condenser::freeze_drafts(Executor& executor, const CancelFlag* cancel) {
  for (Layer& layer : drafts_) {
    throw_if_cancelled(cancel);
    if (details_) report_.mass_ratios.push_back(layer.draft.mass_ratios());
    layer.ranking = {};
    next_place_ = std::max(next_place_, layer.draft.next_place());
    frozen_.push_back(layer.draft.freeze(executor));
  }
  drafts_.clear();
}

std::vector<FrozenLayer> Condenser::finish(Executor& executor, const CancelFlag* cancel) {
  const std::size_t n_done = std::exchange(next_layer_, kSpent);
  PRECIS_CHECK(n_done == layers_.size(), n_done, " of ", layers_.size(), " layers");
  throw_if_cancelled(cancel);
  Stopwatch watch;
  if (shares_by_scores()) fit_bytes();
  report_.select_ms += watch.lap();
  add_residuals(executor, cancel);
  report_.residual_ms += watch.lap();
  if (!keeps_everything_ && uses_bias() && method_.compensator->needs_all_layers())
    add_biases(0, layers_.size());
  report_.merge_ms += watch.lap();
  freeze_drafts(executor, cancel);
  if (keeps_everything_) next_place_ = n_tokens_;
  if (details_) report_.mass_ratios.resize(layers_.size());
  for (std::size_t l = 0; l < layers_.size(); ++l) record(l, frozen_[l]);
  report_.freeze_ms += watch.lap();
  return std::move(frozen_);
}

}  // namespace precis
