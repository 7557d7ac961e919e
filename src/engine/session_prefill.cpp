// The whole prompt through one layer after another.
#include <algorithm>

#include "base/error.h"
#include "engine/repeat_pass.h"
#include "engine/session_impl.h"

namespace precis {
namespace {

// So many rows of the last layer are computed if any is wanted: attention takes them then as it
// takes a whole chunk (layer_cache.cpp, kTileTokens), and the products are as fast.
constexpr std::size_t kFewestOutputs = 64;

// Rows to compute of the chunk [first, first + n) if tokens from first_wanted on are wanted.
std::size_t n_of_chunk(std::size_t first, std::size_t n, std::size_t first_wanted) {
  const std::size_t end = first + n;
  if (end <= first_wanted) return 0;
  return std::min(n, std::max(end - std::max(first, first_wanted), kFewestOutputs));
}

// Copies what an earlier part of a prompt, n_before of its n_tokens tokens, left of a layer to
// where the whole prompt has it.
void take_over(const ObservedQueries& earlier, std::size_t n_before, std::size_t n_tokens,
               ObservedQueries& whole) {
  const std::size_t n_more = n_tokens - n_before;
  const std::size_t n_rows = whole.n_tokens - std::min(whole.n_tokens, n_more);
  const std::size_t d = whole.head_dim;
  for (std::size_t h = 0; h < whole.n_heads && n_rows > 0; ++h) {
    const std::size_t from = (h + 1) * earlier.n_tokens - n_rows;
    const std::size_t to = h * whole.n_tokens;
    std::copy_n(earlier.queries.data() + from * d, n_rows * d, whole.queries.data() + to * d);
    std::copy_n(earlier.log_sum_exp.data() + from, n_rows, whole.log_sum_exp.data() + to);
  }
  const std::size_t stride = n_before * whole.block;
  const std::size_t n_kv_heads = stride > 0 ? earlier.block_attention.size() / stride : 0;
  for (std::size_t h = 0; h < n_kv_heads; ++h)
    std::copy_n(earlier.block_attention.data() + h * stride, stride,
                whole.block_attention.data() + h * n_tokens * whole.block);
  if (!whole.hidden_cosines.empty())
    std::copy_n(earlier.hidden_cosines.data(), n_before, whole.hidden_cosines.data());
  if (whole.repeat_chunk == 0) return;
  for (std::size_t h = 0; h < whole.log_peaks.size() / n_tokens; ++h)
    std::copy_n(earlier.log_peaks.data() + h * n_before, n_before,
                whole.log_peaks.data() + h * n_tokens);
  whole.repeat_ms = earlier.repeat_ms;
}

}  // namespace

void Session::Impl::watch(std::size_t layer, std::size_t n_tokens, const Observation& observe,
                          ObservedQueries& queries) {
  const ModelConfig& c = config();
  queries.n_heads = c.n_heads;
  queries.n_tokens = std::min(observe.n_queries, n_tokens);
  queries.head_dim = c.head_dim;
  queries.queries.resize(c.n_heads * queries.n_tokens * c.head_dim);
  queries.log_sum_exp.resize(c.n_heads * queries.n_tokens);
  queries.block = std::min(observe.block, n_tokens);
  queries.block_attention.resize(c.n_kv_heads * n_tokens * queries.block);
  queries.repeat_chunk = observe.repeat_chunk;
  queries.log_peaks.resize(observe.repeat_chunk == 0 ? 0 : c.n_kv_heads * n_tokens);
  queries.hidden_cosines.resize(observe.hidden_cosine ? n_tokens : 0);
  queries.repeat_ms = 0;
  if (n_positions > 0) take_over(observed[layer], n_positions, n_tokens, queries);
  attention.observe(&queries, n_tokens);
}

void Session::Impl::check_continuation(std::size_t n_tokens, const Observation& observe) const {
  const std::size_t n_queries = std::min(observe.n_queries, n_tokens);
  const Observation earlier{n_queries - std::min(n_queries, n_tokens - n_positions), 0,
                            observe.repeat_chunk, observe.hidden_cosine};
  for (std::size_t il = 0; il < config().n_layers; ++il) {
    if (config().is_sliding[il]) continue;
    const ObservedQueries& kept = observed[il];
    const std::size_t block = std::min(observe.block, n_tokens);
    if (kept.serves(earlier, n_positions) && kept.block == block) continue;
    throw Error(
        ErrorCode::kInvalidArgument,
        concat("of the prompt's first ", n_positions, " tokens the last ", earlier.n_queries,
               " queries and blocks of ", block, " positions and chunks of ", observe.repeat_chunk,
               " are wanted",
               observe.hidden_cosine ? ", and how attention changes hidden states" : "", ", but ",
               kept.n_tokens, " queries, blocks of ", kept.block, " and chunks of ",
               kept.repeat_chunk, " were kept: prefill both parts with the same observation"));
  }
}

void Session::Impl::run_layer_major(std::span<const Token> tokens, const Observation& observe,
                                    const CallControl& control, const LayerDone& layer_done) {
  const ModelConfig& c = config();
  const std::size_t n = tokens.size();
  const std::size_t before = n_positions;
  const std::size_t chunk = even_chunk(n, runner.chunk_tokens());
  std::vector<float> hidden(n * c.n_embd);
  for (std::size_t t = 0; t < n; t += chunk)
    runner.embed(tokens.subspan(t, std::min(chunk, n - t)), hidden.data() + t * c.n_embd);
  const std::size_t n_watched = observe.block > 0 ? n : std::min(observe.n_queries, n);
  std::optional<RepeatPass> repeat;
  if (observe.repeat_chunk > 0) {
    if (before == 0) is_chat = begins_as_chat(*engine, tokens);
    repeat.emplace(*engine, tokens, before, observe.repeat_chunk, is_chat);
    repeat->embed(runner);
  }
  Progress progress{0, 0, (n + (repeat ? repeat->n_tokens() : 0)) * c.n_layers};
  if (control.progress) control.progress(progress);
  const auto advance = [&](std::size_t n_tokens) {
    progress.n_done += n_tokens;
    progress.fraction =
        static_cast<double>(progress.n_done) / static_cast<double>(progress.n_total);
    // The last word comes after the last layer was dealt with.
    if (control.progress && progress.n_done < progress.n_total) control.progress(progress);
  };
  ObservedQueries queries;
  for (std::size_t il = 0; il < c.n_layers; ++il) {
    const bool sliding = c.is_sliding[il];
    if (observe.none() || sliding)
      attention.observe(nullptr, 0);
    else
      watch(il, before + n, observe, queries);
    if (!sliding) layers[il].tail.reserve(before + n + (repeat ? repeat->most_rows() : 0));
    const bool last = il + 1 == c.n_layers;
    for (std::size_t t = 0; t < n; t += chunk) {
      const std::size_t m = std::min(chunk, n - t);
      // Of the last layer only the last token's result and the watched queries are wanted, but for
      // all results that are compared.
      const bool few = last && !attention.compares_hidden();
      const std::size_t n_outputs = few ? n_of_chunk(t, m, n - 1) : m;
      const std::size_t n_queries =
          last ? std::max(n_outputs, n_watched == 0 ? 0 : n_of_chunk(t, m, n - n_watched)) : m;
      runner.run_layer(il, static_cast<std::int32_t>(before + t), m, n_queries, n_outputs,
                       hidden.data() + t * c.n_embd, attention);
      throw_if_left_out();
      trim_sliding(il);
      advance(m);
    }
    if (repeat) {
      const auto start = std::chrono::steady_clock::now();
      if (!repeat->run_layer(il, runner, attention, layers[il].tail, control.cancel, queries))
        throw Error(ErrorCode::kCancelled, "cancelled by the caller");
      if (!sliding) queries.repeat_ms += milliseconds_since(start);
      advance(repeat->n_tokens());
    }
    if (!sliding) layer_done(il, queries);
  }
  attention.observe(nullptr, 0);
  next_logits.resize(c.n_vocab);
  runner.compute_logits(hidden.data() + (n - 1) * c.n_embd, 1, next_logits.data());
  if (control.progress) control.progress(progress);
}

void Session::Impl::prefill(std::span<const Token> tokens, const Observation& observe,
                            const CallControl& control, const LayerDone& layer_done) {
  if (n_positions != 0 && !is_dense_prompt)
    throw Error(ErrorCode::kInvalidArgument, concat("the session already holds ", n_read,
                                                    " tokens; reset it before another prompt"));
  check_room(tokens.size());
  if (n_positions != 0) check_continuation(n_positions + tokens.size(), observe);
  runner.set_cancel(control.cancel);
  attention.set_cancel(control.cancel);
  // Sliding layers drop rows on the way, so theirs are kept for the way back.
  std::vector<std::size_t> sizes;
  std::vector<TailRows> sliding(layers.size());
  for (std::size_t il = 0; il < layers.size(); ++il) {
    sizes.push_back(layers[il].tail.size());
    if (config().is_sliding[il]) sliding[il] = layers[il].tail;
  }
  try {
    run_layer_major(tokens, observe, control, layer_done);
  } catch (...) {
    attention.observe(nullptr, 0);
    attention.take_cancelled();
    if (n_positions == 0) {
      clear();
      throw;
    }
    for (std::size_t il = 0; il < layers.size(); ++il) {
      if (config().is_sliding[il])
        layers[il].tail = std::move(sliding[il]);
      else
        layers[il].tail.truncate(sizes[il]);
    }
    throw;
  }
  logits.swap(next_logits);
  n_positions += tokens.size();
  n_read += tokens.size();
}

}  // namespace precis
