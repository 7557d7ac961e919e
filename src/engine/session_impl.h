// What a session is made of. Only session*.cpp include this.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/layer_cache.h"
#include "engine/session.h"

namespace precis {

// Chunks of nearly the same size in which n_tokens go through the model, so that the last one is
// not a few tokens that read all the weights.
std::size_t even_chunk(std::size_t n_tokens, std::size_t most);

inline double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

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

  void clear();

  std::span<const float> last_row() const {
    if (logits.size() < config().n_vocab) return {};
    return std::span(logits).last(config().n_vocab);
  }

  // Refuses a text of no tokens, or of more than the context takes.
  void check_room(std::size_t n_tokens) const;

  // Drops rows that no later token of a sliding layer can see.
  void trim_sliding(std::size_t layer) {
    TailRows& tail = layers[layer].tail;
    if (config().is_sliding[layer] && tail.size() > config().window)
      tail.drop_front(tail.size() - config().window);
  }

  // In place of the dense rows of all tokens so far, what the condenser left of them. Without
  // memory for it nothing changes.
  void hold(std::vector<FrozenLayer> frozen, Condenser& condenser);

  // Rows of a sliding layer as near to what comes next as they were, when that moves by delta.
  TailRows moved_sliding(std::size_t layer, std::int64_t delta) const;
  // Bytes of the sliding layers that a budget is charged with.
  std::size_t sliding_bytes(const Method& method, std::size_t n_tokens) const;

  // Before, after, and in place of a call that appends tokens.
  void begin(std::size_t n_tokens, std::size_t n_logits);
  void commit(std::size_t n_tokens);
  void drop() noexcept;
  // decode=step: whether layers condense at every token; their caches; and the end of a chunk.
  bool steps() const;
  std::vector<std::optional<StepCache>> copy_stepped() const;
  void commit_stepped();

  void throw_if_left_out();

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

}  // namespace precis
