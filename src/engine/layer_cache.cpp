#include "engine/layer_cache.h"

#include <algorithm>
#include <cmath>
#include <new>

#include "base/allocation_guard.h"
#include "base/error.h"
#include "kernels/kept_logits.h"
#include "kernels/rows.h"

namespace precis {
namespace {

// A tile of queries shares the conversion of each block of K and V; 32 tokens with a group of 3 to
// 7 give the kernel 96 to 224 rows, enough to be compute-bound.
constexpr std::size_t kTileTokens = 32;
static_assert(kTileTokens == StepCache::kChunk);
// A call is cut into about this many tasks, so that every thread finds work and the last ones are
// short: few tokens are cut along the entries too.
constexpr std::size_t kTasks = 48;
// Below this the merge of partial states costs as much as it spreads: 128 entries of 64 channels
// take about 5 us.
constexpr std::size_t kMinSlice = 128;
constexpr std::size_t kMaxSlice = 4096;
// Cuts fall between blocks of the kernels.
constexpr std::size_t kSliceStep = 64;

std::size_t divide_up(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

// Depends on sizes alone, never on the number of threads: cuts decide the bits.
std::size_t slice_entries(std::size_t n_entries, std::size_t n_pieces) {
  if (n_pieces <= 1) return std::max<std::size_t>(1, n_entries);
  const std::size_t even = divide_up(divide_up(n_entries, n_pieces), kSliceStep) * kSliceStep;
  return std::clamp(even, kMinSlice, kMaxSlice);
}

// In double: sums of squares of float activations can leave the range of float.
double cosine(const float* a, const float* b, std::size_t n) {
  double dot = 0;
  double a_squared = 0;
  double b_squared = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const auto x = static_cast<double>(a[i]);
    const auto y = static_cast<double>(b[i]);
    dot += x * y;
    a_squared += x * x;
    b_squared += y * y;
  }
  if (a_squared == 0 || b_squared == 0) return a_squared == b_squared ? 1 : 0;
  return std::clamp(dot / (std::sqrt(a_squared) * std::sqrt(b_squared)), -1.0, 1.0);
}

}  // namespace

std::size_t LayerCache::used_bytes() const {
  std::size_t bytes = tail.used_bytes() + (frozen ? frozen->bytes() : 0);
  for (const PackedList& list : packed_tail) bytes += list.bytes();
  if (stepped) bytes += stepped->bytes();
  return bytes;
}

void pack_aged_rows(LayerCache& cache, const RowTypes& types) {
  if (types == RowTypes{} || cache.tail.size() < 2 * kGroupEntries) return;
  const std::size_t n = (cache.tail.size() / kGroupEntries - 1) * kGroupEntries;
  const KvShape& shape = cache.tail.shape();
  const std::size_t before = cache.packed_size();
  try {
    if (cache.packed_tail.empty())
      cache.packed_tail.assign(shape.n_kv_heads, PackedList(types, shape.head_dim));
    for (std::size_t h = 0; h < shape.n_kv_heads; ++h) {
      const EntryView rows = cache.tail.head(h);
      cache.packed_tail[h].append(rows.keys, rows.values, n);
    }
    cache.tail.drop_front(n);
  } catch (const std::bad_alloc&) {  // no memory now: the rows stay where they are
    for (PackedList& list : cache.packed_tail) list.truncate(before);
  }
}

CacheAttention::CacheAttention(const ModelConfig& config, std::vector<LayerCache>& layers,
                               std::size_t n_threads)
    : config_(config),
      layers_(layers),
      next_task_(config.n_layers),
      gate_tallies_(config.n_layers * config.n_kv_heads * 4),
      scratch_(n_threads),
      tile_sums_(n_threads * kTileTokens * config.group()) {}

void CacheAttention::observe(ObservedQueries* observed, std::size_t n_prompt) {
  observed_ = observed;
  n_prompt_ = n_prompt;
}

CacheAttention::Plan CacheAttention::plan_of(std::size_t layer, std::size_t n_tokens) const {
  const LayerCache& cache = layers_[layer];
  Plan plan;
  plan.n_tiles = divide_up(n_tokens, kTileTokens);
  std::size_t n_entries[kSections] = {0, cache.packed_size(), cache.tail.size(), 0};
  if (cache.frozen)
    for (std::size_t h = 0; h < config_.n_kv_heads; ++h) {
      n_entries[kFrozen] = std::max(n_entries[kFrozen], cache.frozen->n_main(h));
      n_entries[kResidual] = std::max(n_entries[kResidual], cache.frozen->n_residual(h));
    }
  if (cache.stepped) n_entries[kFrozen] = cache.stepped->longest();
  const std::size_t n_pieces = divide_up(kTasks, plan.n_tiles * config_.n_kv_heads);
  for (std::size_t i = 0; i < kSections; ++i) {
    plan.slice[i] = slice_entries(n_entries[i], n_pieces);
    plan.n_slices[i] = divide_up(n_entries[i], plan.slice[i]);
  }
  return plan;
}

void CacheAttention::prepare(std::size_t first_layer, std::size_t last_layer,
                             std::size_t n_tokens) {
  const AllocationAllowed growth("tails grow by half, states with the number of slices");
  std::size_t n_states = 0;
  for (std::size_t il = first_layer; il < last_layer; ++il) {
    if (layers_[il].stepped) {
      StepCache& stepped = *layers_[il].stepped;
      stepped.begin(n_tokens);
      step_logits_.resize(
          std::max(step_logits_.size(), config_.n_heads * n_tokens * stepped.longest()));
      step_sums_.resize(std::max(step_sums_.size(), config_.n_heads * n_tokens));
    } else {
      layers_[il].tail.grow(n_tokens);
    }
    next_task_[il] = 0;
    n_states = std::max(n_states, plan_of(il, n_tokens).all_slices() * config_.n_heads * n_tokens);
  }
  if (state_max_.size() < n_states) {
    state_max_.resize(n_states);
    state_sum_.resize(n_states);
    state_out_.resize(n_states * config_.head_dim);
  }
}

void CacheAttention::store(const AttentionCall& call) noexcept {
  LayerCache& cache = layers_[call.layer];
  TailRows& tail = cache.tail;
  const std::size_t d = config_.head_dim;
  const std::size_t first_row = cache.stepped ? 0 : tail.size() - call.n_tokens;
  // Rows are split, not heads: a model may have a single KV head.
  for (std::size_t t = call.thread; t < call.n_tokens; t += call.n_threads) {
    for (std::size_t h = 0; h < config_.n_kv_heads; ++h) {
      const std::size_t offset = (t * config_.n_kv_heads + h) * d;
      convert_rows(call.k + offset,
                   cache.stepped ? cache.stepped->key_row(h, t) : tail.key_row(h, first_row + t),
                   d);
      convert_rows(
          call.v + offset,
          cache.stepped ? cache.stepped->value_row(h, t) : tail.value_row(h, first_row + t), d);
    }
  }
}

StateView CacheAttention::state(std::size_t slice, std::size_t head, std::size_t first_token,
                                std::size_t n_tokens) {
  const std::size_t row =
      ((slice * config_.n_kv_heads + head) * n_tokens + first_token) * config_.group();
  return {state_max_.data() + row, state_sum_.data() + row,
          state_out_.data() + row * config_.head_dim};
}

void CacheAttention::attend_slice(const AttentionCall& call, const Plan& plan, std::size_t head,
                                  std::size_t tile, std::size_t slice, Scratch& scratch) {
  const LayerCache& cache = layers_[call.layer];
  const std::size_t d = config_.head_dim;
  const std::size_t first_token = tile * kTileTokens;
  QueryView queries;
  queries.n_tokens = std::min(kTileTokens, call.n_tokens - first_token);
  queries.group = config_.group();
  queries.head_dim = d;
  queries.token_stride = config_.n_heads * d;
  queries.data = call.q + (first_token * config_.n_heads + head * queries.group) * d;

  std::size_t section = kFrozen;
  std::size_t index = slice;
  while (index >= plan.n_slices[section]) index -= plan.n_slices[section++];
  if (cache.stepped) {
    const StateView s = state(slice, head, first_token, call.n_tokens);
    const std::size_t first = index * plan.slice[kFrozen];
    attend_stepped(call, queries, head, first, first + plan.slice[kFrozen], s, scratch);
    return;
  }
  const std::size_t n = section == kFrozen       ? cache.frozen->n_main(head)
                        : section == kPackedTail ? cache.packed_size()
                        : section == kTail       ? cache.tail.size()
                                                 : cache.frozen->n_residual(head);
  const std::size_t begin = index * plan.slice[section];
  const std::size_t end = std::min(n, begin + plan.slice[section]);
  Visible visible[kTileTokens];
  for (std::size_t i = 0; i < queries.n_tokens; ++i) {
    std::size_t first = begin;
    std::size_t last = end;
    // Rows of the tail are consecutive positions, this call's tokens the last of them.
    if (section == kTail) {
      const std::size_t own = n - call.n_tokens + first_token + i;
      last = std::min(last, own + 1);
      if (config_.is_sliding[call.layer] && own + 1 > config_.window)
        first = std::max(first, own + 1 - config_.window);
    }
    first = std::min(first, last);
    visible[i] = first < last
                     ? Visible{static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(last)}
                     : Visible{};
  }
  const StateView s = state(slice, head, first_token, call.n_tokens);
  reset_states(s, queries.n_rows(), d);
  const LogitRule rule{config_.attn_scale, config_.attn_softcap};
  if (section == kTail) {
    EntryView rows = cache.tail.head(head);
    if (first_token + queries.n_tokens + call.n_outputs <= call.n_tokens) rows.values = nullptr;
    precis::attend(queries, rows, rule, visible, s, scratch);
    return;
  }
  const PackedView packed = section == kFrozen       ? cache.frozen->head(head)
                            : section == kPackedTail ? cache.packed_tail[head].view()
                                                     : cache.frozen->residual(head);
  precis::attend(queries, packed, rule, visible, s, scratch);
}

float* CacheAttention::step_logits(const StepCache& cache, std::size_t head, std::size_t n_tokens,
                                   std::size_t& stride) {
  stride = cache.longest();
  return step_logits_.data() + head * config_.group() * n_tokens * stride;
}

void CacheAttention::attend_stepped(const AttentionCall& call, const QueryView& queries,
                                    std::size_t head, std::size_t begin, std::size_t end,
                                    const StateView& state, Scratch& scratch) {
  const StepCache& cache = *layers_[call.layer].stepped;
  const std::size_t n_before = cache.size(head) - call.n_tokens;
  Visible visible[kTileTokens];
  for (std::size_t i = 0; i < queries.n_tokens; ++i) {
    const std::size_t last = std::min(end, n_before + i + 1);
    if (begin < last)
      visible[i] = {static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(last)};
  }
  reset_states(state, queries.n_rows(), config_.head_dim);
  std::size_t stride = 0;
  float* logits = step_logits(cache, head, call.n_tokens, stride);
  attend_keeping_logits(queries, cache.head(head), {config_.attn_scale, config_.attn_softcap},
                        visible, state, logits, stride, scratch);
}

// total: of all tokens of the call, which are one tile.
void CacheAttention::observe_stepped(const AttentionCall& call, std::size_t head,
                                     const StateView& total) {
  StepCache& cache = *layers_[call.layer].stepped;
  const std::size_t group = config_.group();
  float* sums = step_sums_.data() + head * group * call.n_tokens;
  finish_states(total, call.n_tokens, group, config_.head_dim, 0, nullptr, sums);
  std::size_t stride = 0;
  float* rows = step_logits(cache, head, call.n_tokens, stride);
  const std::size_t n_before = cache.size(head) - call.n_tokens;
  for (std::size_t r = 0; r < call.n_tokens * group; ++r)
    logits_to_attention(rows + r * stride, n_before + r / group + 1, sums[r]);
  cache.observe(head, rows, stride);
}

void CacheAttention::capture(const AttentionCall& call) {
  const std::size_t d = config_.head_dim;
  const std::size_t first_row = layers_[call.layer].tail.size() - call.n_tokens;
  for (std::size_t t = call.thread; t < call.n_tokens; t += call.n_threads) {
    const std::size_t from_end = n_prompt_ - (first_row + t);
    if (from_end > observed_->n_tokens) continue;
    const std::size_t slot = observed_->n_tokens - from_end;
    for (std::size_t h = 0; h < config_.n_heads; ++h)
      std::copy_n(call.q + (t * config_.n_heads + h) * d, d,
                  observed_->queries.data() + (h * observed_->n_tokens + slot) * d);
  }
}

std::size_t CacheAttention::n_attend_tasks(std::size_t layer, std::size_t n_tokens) const {
  const Plan plan = plan_of(layer, n_tokens);
  return config_.n_kv_heads * plan.n_tiles * plan.all_slices();
}

void CacheAttention::attend_task(const AttentionCall& call, std::size_t task,
                                 Scratch& scratch) noexcept {
  const Plan plan = plan_of(call.layer, call.n_tokens);
  // Late tiles see more, so they go first: the last tasks are then the short ones and no core
  // idles long.
  const std::size_t n_slices = plan.all_slices();
  const std::size_t tile = plan.n_tiles - 1 - task / (config_.n_kv_heads * n_slices);
  const std::size_t head = task / n_slices % config_.n_kv_heads;
  attend_slice(call, plan, head, tile, task % n_slices, scratch);
}

void CacheAttention::attend(const AttentionCall& call) noexcept {
  if (observed_ != nullptr) capture(call);
  const std::size_t n_tasks = n_attend_tasks(call.layer, call.n_tokens);
  std::atomic<std::size_t>& next = next_task_[call.layer];
  for (std::size_t task = next++; task < n_tasks; task = next++) {
    if (cancel_ != nullptr && cancel_->load(std::memory_order_relaxed)) {
      cancelled_ = true;
      return;
    }
    attend_task(call, task, scratch_[call.thread]);
  }
}

std::size_t CacheAttention::n_finish_tasks(std::size_t layer, std::size_t n_tokens) const {
  return config_.n_kv_heads * plan_of(layer, n_tokens).n_tiles;
}

void CacheAttention::finish_task(const AttentionCall& call, std::size_t task) noexcept {
  const Plan plan = plan_of(call.layer, call.n_tokens);
  const std::size_t d = config_.head_dim;
  const std::size_t group = config_.group();
  const std::size_t head = task % config_.n_kv_heads;
  const std::size_t first_token = task / config_.n_kv_heads * kTileTokens;
  const std::size_t n = std::min(kTileTokens, call.n_tokens - first_token);
  const StateView total = state(0, head, first_token, call.n_tokens);
  const std::size_t n_exact = plan.exact_slices();  // at least the tail's
  for (std::size_t s = 1; s < n_exact; ++s)
    merge_states(total, state(s, head, first_token, call.n_tokens), n * group, d);
  if (layers_[call.layer].stepped) observe_stepped(call, head, total);
  if (plan.n_slices[kResidual] > 0) {
    const StateView residual = state(n_exact, head, first_token, call.n_tokens);
    for (std::size_t s = n_exact + 1; s < plan.all_slices(); ++s)
      merge_states(residual, state(s, head, first_token, call.n_tokens), n * group, d);
    const FrozenLayer& frozen = *layers_[call.layer].frozen;
    const GateTally tally = gate_states(frozen.gate(head), total, residual, n * group, d);
    // Other heads of the layer have residual entries.
    if (frozen.n_residual(head) > 0) count_gated(call.layer, head, tally);
    merge_states(total, residual, n * group, d);
  }
  if (observed_ != nullptr) {
    float* log_sum_exp = tile_sums_.data() + call.thread * kTileTokens * group;
    finish_states(total, n, group, d, 0, nullptr, log_sum_exp);
    capture_sums(call, head, first_token, n, log_sum_exp);
  }
  const std::size_t first_output = call.n_tokens - call.n_outputs;
  const std::size_t skip = first_output > first_token ? first_output - first_token : 0;
  if (skip >= n) return;
  const StateView wanted{total.max + skip * group, total.sum + skip * group,
                         total.out + skip * group * d};
  const std::size_t row = first_token + skip - first_output;
  float* out = call.out + (row * config_.n_heads + head * group) * d;
  finish_states(wanted, n - skip, group, d, config_.n_heads * d, out, nullptr);
}

void CacheAttention::count_gated(std::size_t layer, std::size_t head, const GateTally& tally) {
  std::atomic<std::uint64_t>* sums = &gate_tallies_[(layer * config_.n_kv_heads + head) * 4];
  sums[0].fetch_add(tally.n_rows, std::memory_order_relaxed);
  sums[1].fetch_add(tally.n_open, std::memory_order_relaxed);
  sums[2].fetch_add(tally.n_closed, std::memory_order_relaxed);
  sums[3].fetch_add(tally.factor_sum, std::memory_order_relaxed);
}

GateTally CacheAttention::gate_tally(std::size_t layer, std::size_t head) const {
  const std::atomic<std::uint64_t>* sums = &gate_tallies_[(layer * config_.n_kv_heads + head) * 4];
  return {sums[0].load(std::memory_order_relaxed), sums[1].load(std::memory_order_relaxed),
          sums[2].load(std::memory_order_relaxed), sums[3].load(std::memory_order_relaxed)};
}

void CacheAttention::reset_gate_tallies() {
  for (std::atomic<std::uint64_t>& sum : gate_tallies_) sum = 0;
}

// log_sum_exp [n_tokens, group] of one tile and KV head.
void CacheAttention::capture_sums(const AttentionCall& call, std::size_t head,
                                  std::size_t first_token, std::size_t n_tokens,
                                  const float* log_sum_exp) {
  const std::size_t d = config_.head_dim;
  const std::size_t group = config_.group();
  const TailRows& tail = layers_[call.layer].tail;
  const std::size_t first_row = tail.size() - call.n_tokens + first_token;
  for (std::size_t t = 0; t < n_tokens; ++t) {
    const std::size_t from_end = n_prompt_ - (first_row + t);
    if (from_end > observed_->n_tokens) continue;
    const std::size_t slot = observed_->n_tokens - from_end;
    for (std::size_t j = 0; j < group; ++j)
      observed_->log_sum_exp[(head * group + j) * observed_->n_tokens + slot] =
          log_sum_exp[t * group + j];
  }
  const std::size_t block = observed_->block;
  for (std::size_t t = 0; block > 0 && t < n_tokens;) {
    const std::size_t row = first_row + t;
    const std::size_t place = row % block;
    QueryView queries;
    queries.n_tokens = std::min(n_tokens - t, block - place);
    queries.group = group;
    queries.head_dim = d;
    queries.token_stride = config_.n_heads * d;
    queries.data = call.q + ((first_token + t) * config_.n_heads + head * group) * d;
    log_block_attention(queries, tail.head(head).keys + (row - place) * d, place,
                        {config_.attn_scale, config_.attn_softcap}, log_sum_exp + t * group, block,
                        observed_->block_attention.data() + (head * n_prompt_ + row) * block,
                        scratch_[call.thread]);
    t += queries.n_tokens;
  }
}

void CacheAttention::finish(const AttentionCall& call) noexcept {
  if (cancelled_) return;
  const std::size_t n_tasks = n_finish_tasks(call.layer, call.n_tokens);
  for (std::size_t task = call.thread; task < n_tasks; task += call.n_threads)
    finish_task(call, task);
}

// Some 3 flops for each of a token's channels, where the layer's products take thousands.
void CacheAttention::compare_hidden(const HiddenCall& call) noexcept {
  const std::size_t first_row = layers_[call.layer].tail.size() - call.n_tokens;
  for (std::size_t t = call.thread; t < call.n_tokens; t += call.n_threads)
    observed_->hidden_cosines[first_row + t] = static_cast<float>(
        cosine(call.before + t * call.width, call.after + t * call.width, call.width));
}

}  // namespace precis
