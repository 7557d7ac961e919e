#include "engine/session.h"

#include <algorithm>
#include <chrono>

#include "base/allocation_guard.h"
#include "base/error.h"
#include "engine/layer_cache.h"
#include "engine/repeat_pass.h"
#include "kernels/rows.h"

namespace precis {
namespace {

double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

// Chunks of nearly the same size, so that the last one is not a few tokens that read all the
// weights. Multiples of 32, which is what attention takes as a tile.
std::size_t even_chunk(std::size_t n_tokens, std::size_t most) {
  constexpr std::size_t kTile = 32;
  const std::size_t n_chunks = (n_tokens + most - 1) / most;
  const std::size_t even = (n_tokens + n_chunks - 1) / n_chunks;
  return std::min(most, (even + kTile - 1) / kTile * kTile);
}

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

struct Session::Impl {
  std::shared_ptr<const Engine> engine;
  GraphRunner runner;
  std::vector<LayerCache> layers;
  CacheAttention attention;
  std::size_t n_positions = 0;            // of the next token
  std::size_t n_read = 0;                 // tokens so far
  std::vector<float> logits;              // rows of the last call
  std::vector<float> next_logits;         // rows of the call in progress, then swapped
  std::vector<std::size_t> tail_sizes;    // rows before the call in progress
  std::vector<ObservedQueries> observed;  // [n_layers] between prefill and compress, else empty
  bool is_dense_prompt = false;           // prefill() done, compress() possible
  bool is_chat = false;                   // the prompt begins as the chat template, if asked
  RowTypes rows;                          // of what aged in the tail
  double prefill_ms = 0;
  double repeat_ms = 0;  // of the prompt so far; not part of prefill_ms
  double compress_ms = 0;

  explicit Impl(std::shared_ptr<const Engine> e)
      : engine(std::move(e)),
        runner(engine->shared_model(), engine->backend()),
        attention(engine->config(), layers, engine->backend().n_workers()) {
    clear();
  }

  const ModelConfig& config() const { return engine->config(); }
  KvShape shape() const { return {config().n_kv_heads, config().head_dim}; }

  void clear() {
    layers.assign(config().n_layers, {});
    for (LayerCache& layer : layers) layer.tail = TailRows(shape());
    n_positions = 0;
    n_read = 0;
    logits.clear();
    observed.clear();
    is_dense_prompt = false;
    is_chat = false;
    rows = {};
    attention.observe(nullptr, 0);
  }

  std::span<const float> last_row() const {
    if (logits.size() < config().n_vocab) return {};
    return std::span(logits).last(config().n_vocab);
  }

  void check_room(std::size_t n_tokens) const {
    if (n_tokens == 0)
      throw Error(ErrorCode::kInvalidArgument, "the prompt is empty: it has no tokens");
    if (n_positions + n_tokens > config().n_ctx_train)
      throw Error(
          ErrorCode::kInvalidArgument,
          concat("the text needs ", n_positions + n_tokens, " tokens but the model's context is ",
                 config().n_ctx_train, "; shorten it or use a model with a longer context"));
  }

  // Drops rows that no later token of a sliding layer can see.
  void trim_sliding(std::size_t layer) {
    TailRows& tail = layers[layer].tail;
    if (config().is_sliding[layer] && tail.size() > config().window)
      tail.drop_front(tail.size() - config().window);
  }

  // In place of the dense rows of all tokens so far; the next one stands at next_position.
  void hold(std::vector<FrozenLayer> frozen, std::size_t next_position) {
    move_sliding(static_cast<std::int64_t>(next_position) - static_cast<std::int64_t>(n_positions));
    n_positions = next_position;
    const std::vector<std::size_t> indices = engine->compressible_indices();
    for (std::size_t i = 0; i < frozen.size(); ++i) {
      LayerCache& layer = layers[indices[i]];
      layer.frozen = std::make_shared<const FrozenLayer>(std::move(frozen[i]));
      layer.tail = TailRows(shape(), static_cast<std::int32_t>(n_positions));
    }
  }

  // Rows of sliding layers stay as near to what comes next as they were.
  void move_sliding(std::int64_t delta) {
    if (delta == 0) return;
    const std::size_t d = config().head_dim;
    std::vector<float> row(d);
    for (std::size_t il = 0; il < layers.size(); ++il) {
      if (!config().is_sliding[il]) continue;
      const Rope rope = engine->model().rope(il);
      RopeTurn turn(rope);
      turn.set_delta(delta);
      TailRows& tail = layers[il].tail;
      for (std::size_t h = 0; h < config().n_kv_heads; ++h)
        for (std::size_t t = 0; t < tail.size(); ++t) {
          convert_rows(tail.key_row(h, t), row.data(), d);
          turn.apply(row.data());
          convert_rows(row.data(), tail.key_row(h, t), d);
        }
      tail.set_first_position(tail.first_position() + static_cast<std::int32_t>(delta));
    }
  }

  // Before, after, and in place of a call that appends tokens.
  void begin(std::size_t n_tokens, std::size_t n_logits);
  void commit(std::size_t n_tokens);
  void drop() noexcept;

  void throw_if_left_out() {
    if (!attention.take_cancelled()) return;
    const AllocationAllowed message("an error's message");
    throw Error(ErrorCode::kCancelled, "cancelled by the caller");
  }

  // What happens to a layer's rows once the whole prompt went through it.
  using LayerDone = std::function<void(std::size_t layer, ObservedQueries& observed)>;

  // The whole prompt through one layer after another (layer-major prefill).
  void prefill(std::span<const Token> tokens, const Observation& observe,
               const CallControl& control, const LayerDone& layer_done);
  void run_layer_major(std::span<const Token> tokens, const Observation& observe,
                       const CallControl& control, const LayerDone& layer_done);
  // Makes room for what is wanted of a prompt's next layer, and has it captured. What an earlier
  // part of the prompt left is taken over.
  void watch(std::size_t layer, std::size_t n_tokens, const Observation& observe,
             ObservedQueries& queries);
  // Refuses a prompt's next part if the earlier ones lack what is wanted of the whole.
  void check_continuation(std::size_t n_tokens, const Observation& observe) const;
  void extend(std::span<const Token> tokens, std::size_t n_logits, const CallControl& control);
};

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
  queries.repeat_ms = 0;
  queries.hidden_cosines.resize(observe.hidden_cosine ? n_tokens : 0);
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

void Session::Impl::extend(std::span<const Token> tokens, std::size_t n_logits,
                           const CallControl& control) {
  if (n_logits > tokens.size())
    throw Error(ErrorCode::kInvalidArgument,
                concat("logits of ", n_logits, " tokens wanted, ", tokens.size(), " given"));
  runner.set_cancel(control.cancel);
  attention.set_cancel(control.cancel);
  const std::size_t n_vocab = config().n_vocab;
  const std::size_t chunk = even_chunk(tokens.size(), runner.chunk_tokens());
  begin(tokens.size(), n_logits);
  std::size_t n_rows = 0;
  const AllocationForbidden guard("decoding one token", tokens.size() == 1 && n_logits == 1);
  try {
    for (std::size_t t = 0; t < tokens.size(); t += chunk) {
      const std::size_t m = std::min(chunk, tokens.size() - t);
      const std::size_t first_wanted = std::max(t, tokens.size() - n_logits);
      const std::size_t wanted = t + m > first_wanted ? t + m - first_wanted : 0;
      runner.run(tokens.subspan(t, m), static_cast<std::int32_t>(n_positions + t), attention,
                 wanted, next_logits.data() + n_rows * n_vocab);
      throw_if_left_out();
      n_rows += wanted;
      if (control.progress) {
        const AllocationAllowed callback("the caller's code");
        control.progress({static_cast<double>(t + m) / static_cast<double>(tokens.size()), t + m,
                          tokens.size()});
      }
    }
  } catch (...) {
    drop();
    throw;
  }
  commit(tokens.size());
}

void Session::Impl::begin(std::size_t n_tokens, std::size_t n_logits) {
  check_room(n_tokens);
  // Both buffers keep their memory from call to call, unless a call for many rows left one that a
  // decode of single rows would hold on to for nothing.
  const std::size_t n = n_logits * config().n_vocab;
  if (next_logits.capacity() > 2 * n && n_logits == 1) std::vector<float>().swap(next_logits);
  next_logits.resize(n);
  tail_sizes.resize(layers.size());
  for (std::size_t il = 0; il < layers.size(); ++il) tail_sizes[il] = layers[il].tail.size();
}

void Session::Impl::commit(std::size_t n_tokens) {
  logits.swap(next_logits);
  n_positions += n_tokens;
  n_read += n_tokens;
  is_dense_prompt = false;
  observed.clear();
  // Dropping rows moves the rest, so it waits until half of the tail is out of sight.
  for (std::size_t il = 0; il < layers.size(); ++il)
    if (layers[il].tail.size() >= 2 * config().window) {
      const AllocationAllowed trim("once every `window` tokens a sliding layer moves its rows");
      trim_sliding(il);
    }
  if (rows == RowTypes{}) return;
  const AllocationAllowed aging("once every 32 tokens the oldest rows of the tail are packed");
  for (std::size_t il = 0; il < layers.size(); ++il)
    if (!config().is_sliding[il]) pack_aged_rows(layers[il], rows);
}

void Session::Impl::drop() noexcept {
  // Nothing was trimmed yet, so the tails can go back.
  for (std::size_t il = 0; il < layers.size(); ++il)
    layers[il].tail.truncate(std::min(tail_sizes[il], layers[il].tail.size()));
  attention.take_cancelled();
}

Session::Session(std::shared_ptr<const Engine> engine)
    : impl_(std::make_unique<Impl>(std::move(engine))) {}
Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;

void Session::prefill(std::span<const Token> tokens, const Observation& observe,
                      const CallControl& control) {
  Impl& impl = *impl_;
  const auto start = std::chrono::steady_clock::now();
  std::vector<ObservedQueries> kept(impl.config().n_layers);
  impl.prefill(tokens, observe, control, [&](std::size_t layer, ObservedQueries& queries) {
    kept[layer] = std::move(queries);
  });
  impl.observed = std::move(kept);
  double repeat_ms = 0;  // of all parts so far
  for (const ObservedQueries& layer : impl.observed) repeat_ms += layer.repeat_ms;
  const double before = impl.is_dense_prompt ? impl.prefill_ms + impl.repeat_ms : 0;
  impl.repeat_ms = repeat_ms;
  impl.prefill_ms = before + milliseconds_since(start) - repeat_ms;
  impl.is_dense_prompt = true;
  impl.compress_ms = 0;
}

CompressionReport Session::compress(const CondenseRequest& request, const CallControl& control) {
  Impl& impl = *impl_;
  if (!impl.is_dense_prompt)
    throw Error(ErrorCode::kInvalidArgument,
                "only a prompt that was just read can be compressed: call prefill first");
  const auto start = std::chrono::steady_clock::now();
  const std::vector<std::size_t> indices = impl.engine->compressible_indices();
  Condenser condenser(request.method, request.budget, impl.engine->compressible_layers(),
                      impl.n_positions, request.seed, sliding_bytes(), request.rows);
  if (request.details) condenser.report_details();
  if (control.progress) control.progress({0, 0, indices.size()});
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const std::size_t il = indices[i];
    const ObservedQueries& kept = impl.observed[il];
    const Observation& wanted = condenser.observation();
    if (!kept.serves(wanted, impl.n_positions))
      throw Error(
          ErrorCode::kInvalidArgument,
          concat("the method reads the last ", wanted.n_queries, " queries, blocks of ",
                 wanted.block, " positions and chunks of ", wanted.repeat_chunk, " repeated tokens",
                 wanted.hidden_cosine ? " and how attention changes hidden states" : "",
                 ", but prefill kept ", kept.n_tokens, " queries, blocks of ", kept.block,
                 " and chunks of ", kept.repeat_chunk, ": give prefill the method's observation"));
    condenser.condense_layer(i, impl.layers[il].tail, impl.observed[il], impl.engine->backend(),
                             control.cancel);
    if (control.progress && i + 1 < indices.size()) {
      const auto done = static_cast<double>(i + 1) / static_cast<double>(indices.size());
      control.progress({done, i + 1, indices.size()});
    }
  }
  std::vector<FrozenLayer> frozen = condenser.finish(impl.engine->backend(), control.cancel);
  if (control.progress) control.progress({1, indices.size(), indices.size()});
  impl.hold(std::move(frozen), condenser.next_place());
  impl.observed.clear();
  impl.is_dense_prompt = false;
  impl.rows = request.rows;
  impl.compress_ms = milliseconds_since(start) + condenser.report().repeat_ms;
  return condenser.report();
}

CompressionReport Session::condense(std::span<const Token> tokens, const CondenseRequest& request,
                                    const CallControl& control) {
  Impl& impl = *impl_;
  if (impl.n_positions != 0)
    throw Error(ErrorCode::kInvalidArgument, concat("the session already holds ", impl.n_read,
                                                    " tokens; reset it before another prompt"));
  impl.check_room(tokens.size());
  const auto start = std::chrono::steady_clock::now();
  const std::vector<std::size_t> indices = impl.engine->compressible_indices();
  const ModelConfig& c = impl.config();
  const std::size_t sliding_rows = std::min(tokens.size(), c.window);
  const std::size_t n_sliding = c.n_layers - indices.size();
  Condenser condenser(request.method, request.budget, impl.engine->compressible_layers(),
                      tokens.size(), request.seed,
                      n_sliding * sliding_rows * c.n_kv_heads * impl.shape().row_pair_bytes(),
                      request.rows);
  if (request.details) condenser.report_details();
  std::size_t next = 0;
  double compress_ms = 0;
  std::vector<FrozenLayer> frozen;
  impl.prefill(tokens, condenser.observation(), control,
               [&](std::size_t layer, ObservedQueries& queries) {
                 const auto layer_start = std::chrono::steady_clock::now();
                 LayerCache& cache = impl.layers[layer];
                 condenser.condense_layer(next++, cache.tail, queries, impl.engine->backend(),
                                          control.cancel);
                 // The rows' memory moves on to the next compressible layer.
                 TailRows rows = std::move(cache.tail);
                 cache.tail = TailRows(impl.shape(), static_cast<std::int32_t>(tokens.size()));
                 rows.truncate(0);
                 if (next < indices.size())
                   impl.layers[indices[next]].tail = std::move(rows);
                 else
                   frozen = condenser.finish(impl.engine->backend(), control.cancel);
                 compress_ms += milliseconds_since(layer_start);
               });
  if (!frozen.empty()) impl.hold(std::move(frozen), condenser.next_place());
  impl.rows = request.rows;
  impl.compress_ms = compress_ms + condenser.report().repeat_ms;
  impl.prefill_ms = milliseconds_since(start) - impl.compress_ms;
  return condenser.report();
}

void Session::restore(std::vector<std::shared_ptr<const FrozenLayer>> frozen,
                      std::size_t next_position, RowTypes rows) {
  Impl& impl = *impl_;
  const ModelConfig& c = impl.config();
  const auto refuse = [](const std::string& message) {
    throw Error(ErrorCode::kInvalidArgument, message);
  };
  if (impl.n_positions != 0)
    refuse(concat("the session already holds ", impl.n_read,
                  " tokens; reset it before restoring a cache"));
  if (frozen.size() != c.n_layers)
    refuse(concat("the cache has ", frozen.size(), " layers but the model has ", c.n_layers));
  if (next_position == 0 || next_position > c.n_ctx_train)
    refuse(concat("the cache goes on at position ", next_position, " but the model's context is ",
                  c.n_ctx_train));
  for (std::size_t il = 0; il < c.n_layers; ++il) {
    if (c.is_sliding[il] != (frozen[il] == nullptr))
      refuse(concat("layer ", il, " of the model ", c.is_sliding[il] ? "has" : "does not have",
                    " a sliding window, but the cache has ", frozen[il] ? "entries" : "no entries",
                    " for it"));
    if (frozen[il] == nullptr) continue;
    const KvShape& shape = frozen[il]->shape();
    if (!(shape == impl.shape()))
      refuse(concat("layer ", il, " of the cache has ", shape.n_kv_heads, " KV heads of ",
                    shape.head_dim, " channels but the model has ", c.n_kv_heads, " of ",
                    c.head_dim));
  }
  impl.clear();
  for (std::size_t il = 0; il < c.n_layers; ++il) {
    impl.layers[il].frozen = std::move(frozen[il]);
    impl.layers[il].tail = TailRows(impl.shape(), static_cast<std::int32_t>(next_position));
  }
  impl.n_positions = next_position;
  impl.n_read = next_position;
  impl.rows = rows;
  impl.prefill_ms = 0;
  impl.compress_ms = 0;
}

std::span<const float> Session::extend(std::span<const Token> tokens, std::size_t n_logits,
                                       const CallControl& control) {
  impl_->extend(tokens, n_logits, control);
  return impl_->logits;
}

void Session::begin_token() { impl_->begin(1, 1); }
CacheAttention& Session::token_attention() { return impl_->attention; }
float* Session::token_logits() { return impl_->next_logits.data(); }
void Session::commit_token() { impl_->commit(1); }
void Session::drop_token() noexcept { impl_->drop(); }

std::span<const float> Session::last_logits() const { return impl_->last_row(); }

Session Session::fork() const {
  auto copy = std::make_unique<Impl>(impl_->engine);
  copy->layers = impl_->layers;
  copy->n_positions = impl_->n_positions;
  copy->n_read = impl_->n_read;
  copy->logits = impl_->logits;
  copy->observed = impl_->observed;
  copy->is_dense_prompt = impl_->is_dense_prompt;
  copy->is_chat = impl_->is_chat;
  copy->rows = impl_->rows;
  copy->prefill_ms = impl_->prefill_ms;
  copy->repeat_ms = impl_->repeat_ms;
  copy->compress_ms = impl_->compress_ms;
  return Session(std::move(copy));
}

void Session::reset() { impl_->clear(); }

std::size_t Session::next_position() const { return impl_->n_positions; }

std::size_t Session::sliding_bytes() const {
  std::size_t bytes = 0;
  for (std::size_t il = 0; il < impl_->layers.size(); ++il)
    if (impl_->config().is_sliding[il]) bytes += impl_->layers[il].tail.used_bytes();
  return bytes;
}

std::size_t Session::kv_bytes() const {
  std::size_t bytes = 0;
  for (const LayerCache& layer : impl_->layers) bytes += layer.used_bytes();
  return bytes;
}

std::size_t Session::kv_bytes_full() const {
  const ModelConfig& c = impl_->config();
  std::size_t rows = 0;
  for (std::size_t il = 0; il < c.n_layers; ++il)
    rows += c.is_sliding[il] ? std::min(c.window, impl_->n_read) : impl_->n_read;
  return rows * c.n_kv_heads * impl_->shape().row_pair_bytes();
}

double Session::prefill_ms() const { return impl_->prefill_ms; }
double Session::compress_ms() const { return impl_->compress_ms; }
const std::shared_ptr<const Engine>& Session::engine() const { return impl_->engine; }
const FrozenLayer* Session::frozen_layer(std::size_t layer) const {
  return impl_->layers[layer].frozen.get();
}
const TailRows& Session::tail(std::size_t layer) const { return impl_->layers[layer].tail; }

const ObservedQueries& Session::observed(std::size_t layer) const {
  PRECIS_CHECK(layer < impl_->observed.size(), layer, " of ", impl_->observed.size());
  return impl_->observed[layer];
}

}  // namespace precis
