#include "engine/session.h"

#include <algorithm>
#include <chrono>

#include "base/allocation_guard.h"
#include "base/error.h"
#include "engine/session_impl.h"
#include "kernels/rows.h"

namespace precis {

// Multiples of 32, which is what attention takes as a tile.
std::size_t even_chunk(std::size_t n_tokens, std::size_t most) {
  constexpr std::size_t kTile = 32;
  const std::size_t n_chunks = (n_tokens + most - 1) / most;
  const std::size_t even = (n_tokens + n_chunks - 1) / n_chunks;
  return std::min(most, (even + kTile - 1) / kTile * kTile);
}

void Session::Impl::clear() {
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
  attention.reset_gate_tallies();
}

void Session::Impl::check_room(std::size_t n_tokens) const {
  if (n_tokens == 0)
    throw Error(ErrorCode::kInvalidArgument, "the prompt is empty: it has no tokens");
  if (n_positions + n_tokens > config().n_ctx_train)
    throw Error(
        ErrorCode::kInvalidArgument,
        concat("the text needs ", n_positions + n_tokens, " tokens but the model's context is ",
               config().n_ctx_train, "; shorten it or use a model with a longer context"));
}

void Session::Impl::hold(std::vector<FrozenLayer> frozen, Condenser& condenser) {
  const std::size_t next_position = condenser.next_place();
  const std::vector<std::vector<StepCarry>> carries = condenser.take_carries();
  const auto rules = carries.empty() ? std::shared_ptr<const StepRules>()
                                     : std::make_shared<const StepRules>(condenser.step_rules());
  // All of it is made before anything is replaced, so that a lack of memory changes nothing.
  std::vector<LayerCache> held(layers.size());
  const std::vector<std::size_t> indices = engine->compressible_indices();
  for (std::size_t i = 0; i < frozen.size(); ++i) {
    LayerCache& layer = held[indices[i]];
    layer.tail = TailRows(shape(), static_cast<std::int32_t>(next_position));
    const auto rows = std::make_shared<const FrozenLayer>(std::move(frozen[i]));
    if (rules == nullptr)
      layer.frozen = rows;
    else
      layer.stepped.emplace(rules, *rows, carries[i], condenser.step_entries(), config().group(),
                            static_cast<std::int32_t>(next_position));
  }
  const std::int64_t delta =
      static_cast<std::int64_t>(next_position) - static_cast<std::int64_t>(n_positions);
  for (std::size_t il = 0; il < layers.size(); ++il)
    if (config().is_sliding[il] && delta != 0) held[il].tail = moved_sliding(il, delta);
  for (std::size_t il = 0; il < layers.size(); ++il)
    if (config().is_sliding[il] && delta == 0) held[il].tail = std::move(layers[il].tail);
  layers.swap(held);
  n_positions = next_position;
}

TailRows Session::Impl::moved_sliding(std::size_t layer, std::int64_t delta) const {
  TailRows tail = layers[layer].tail;
  const std::size_t d = config().head_dim;
  std::vector<float> row(d);
  const Rope rope = engine->model().rope(layer);
  RopeTurn turn(rope);
  turn.set_delta(delta);
  for (std::size_t h = 0; h < config().n_kv_heads; ++h)
    for (std::size_t t = 0; t < tail.size(); ++t) {
      convert_rows(tail.key_row(h, t), row.data(), d);
      turn.apply(row.data());
      convert_rows(row.data(), tail.key_row(h, t), d);
    }
  tail.set_first_position(tail.first_position() + static_cast<std::int32_t>(delta));
  return tail;
}

// Those of sliding layers when the prompt of n_tokens is condensed; or, as a cache that keeps its
// size must stay within its budget, the most that they ever take between calls.
std::size_t Session::Impl::sliding_bytes(const Method& method, std::size_t n_tokens) const {
  const std::size_t window = config().window;
  const std::size_t n_rows =
      method.steps && window > 0 ? 2 * window - 1 : std::min(n_tokens, window);
  const std::size_t n_layers = config().n_layers - engine->compressible_indices().size();
  return n_layers * n_rows * config().n_kv_heads * shape().row_pair_bytes();
}

void Session::Impl::throw_if_left_out() {
  if (!attention.take_cancelled()) return;
  const AllocationAllowed message("an error's message");
  throw Error(ErrorCode::kCancelled, "cancelled by the caller");
}

void Session::Impl::extend(std::span<const Token> tokens, std::size_t n_logits,
                           const CallControl& control) {
  if (n_logits > tokens.size())
    throw Error(ErrorCode::kInvalidArgument,
                concat("logits of ", n_logits, " tokens wanted, ", tokens.size(), " given"));
  runner.set_cancel(control.cancel);
  attention.set_cancel(control.cancel);
  const std::size_t n_vocab = config().n_vocab;
  const std::size_t most =
      steps() ? std::min(StepCache::kChunk, runner.chunk_tokens()) : runner.chunk_tokens();
  begin(tokens.size(), n_logits);
  const std::size_t chunk = even_chunk(tokens.size(), most);
  // What earlier chunks evicted cannot come back otherwise.
  std::vector<std::optional<StepCache>> stepped;
  if (steps() && tokens.size() > chunk) stepped = copy_stepped();
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
      if (t + m < tokens.size()) commit_stepped();
      n_rows += wanted;
      if (control.progress) {
        const AllocationAllowed callback("the caller's code");
        control.progress({static_cast<double>(t + m) / static_cast<double>(tokens.size()), t + m,
                          tokens.size()});
      }
    }
  } catch (...) {
    drop();
    for (std::size_t il = 0; il < stepped.size(); ++il) layers[il].stepped.swap(stepped[il]);
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
  commit_stepped();
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
  for (LayerCache& layer : layers)
    if (layer.stepped) layer.stepped->drop();
  attention.take_cancelled();
}

bool Session::Impl::steps() const {
  return std::any_of(layers.begin(), layers.end(),
                     [](const LayerCache& layer) { return layer.stepped.has_value(); });
}

std::vector<std::optional<StepCache>> Session::Impl::copy_stepped() const {
  std::vector<std::optional<StepCache>> copies;
  for (const LayerCache& layer : layers) copies.push_back(layer.stepped);
  return copies;
}

void Session::Impl::commit_stepped() {
  for (LayerCache& layer : layers)
    if (layer.stepped) layer.stepped->commit();
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
                      impl.n_positions, request.seed,
                      impl.sliding_bytes(request.method, impl.n_positions), request.rows);
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
  impl.hold(std::move(frozen), condenser);
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
  Condenser condenser(request.method, request.budget, impl.engine->compressible_layers(),
                      tokens.size(), request.seed,
                      impl.sliding_bytes(request.method, tokens.size()), request.rows);
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
  try {
    if (!frozen.empty()) impl.hold(std::move(frozen), condenser);
  } catch (...) {
    impl.clear();
    throw;
  }
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

std::vector<std::vector<GateTally>> Session::gate_tallies() const {
  std::vector<std::vector<GateTally>> out;
  for (const std::size_t layer : impl_->engine->compressible_indices()) {
    std::vector<GateTally>& heads = out.emplace_back();
    for (std::size_t h = 0; h < impl_->config().n_kv_heads; ++h)
      heads.push_back(impl_->attention.gate_tally(layer, h));
  }
  return out;
}

double Session::prefill_ms() const { return impl_->prefill_ms; }
double Session::compress_ms() const { return impl_->compress_ms; }
const std::shared_ptr<const Engine>& Session::engine() const { return impl_->engine; }
std::shared_ptr<const FrozenLayer> Session::condensed_layer(std::size_t layer) const {
  const LayerCache& cache = impl_->layers[layer];
  if (!cache.stepped) return cache.frozen;
  return std::make_shared<const FrozenLayer>(cache.stepped->freeze());
}

const FrozenLayer* Session::frozen_layer(std::size_t layer) const {
  return impl_->layers[layer].frozen.get();
}
const TailRows& Session::tail(std::size_t layer) const { return impl_->layers[layer].tail; }

const StepCache* Session::step_cache(std::size_t layer) const {
  const std::optional<StepCache>& stepped = impl_->layers[layer].stepped;
  return stepped ? &*stepped : nullptr;
}

const ObservedQueries& Session::observed(std::size_t layer) const {
  PRECIS_CHECK(layer < impl_->observed.size(), layer, " of ", impl_->observed.size());
  return impl_->observed[layer];
}

}  // namespace precis
