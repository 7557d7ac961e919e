// Attention as a custom operation inside a model's graph. The graph computes q, k, v of some tokens
// of one layer and calls the three phases in order, each on all threads of the pool at once, with a
// barrier between phases. Implementations divide the work by (thread, n_threads) and must give the
// same bits for any n_threads.
#pragma once

#include <cstddef>

namespace precis {

// One call: n_tokens consecutive tokens of one layer. q and k are after RoPE.
struct AttentionCall {
  std::size_t layer = 0;
  std::size_t n_tokens = 0;
  // The last n_outputs tokens want `out`. The others pass through the last layer for what the
  // implementation itself learns from their queries.
  std::size_t n_outputs = 0;
  const float* q = nullptr;  // [n_tokens, n_heads, head_dim]
  const float* k = nullptr;  // [n_tokens, n_kv_heads, head_dim]
  const float* v = nullptr;  // [n_tokens, n_kv_heads, head_dim]
  float* out = nullptr;      // [n_outputs, n_heads, head_dim], set in the last phase only
  std::size_t thread = 0;
  std::size_t n_threads = 1;
};

// The residual stream of the last n_tokens tokens of one layer, before attention and with its
// output added.
struct HiddenCall {
  std::size_t layer = 0;
  std::size_t n_tokens = 0;
  std::size_t width = 0;
  const float* before = nullptr;  // [n_tokens, width]
  const float* after = nullptr;   // [n_tokens, width]
  std::size_t thread = 0;
  std::size_t n_threads = 1;
};

class AttentionOp {
 public:
  virtual ~AttentionOp() = default;
  // On the calling thread, before a graph runs: make room for n_tokens more tokens in layers
  // [first, last). May throw.
  virtual void prepare(std::size_t first_layer, std::size_t last_layer, std::size_t n_tokens) = 0;
  // Phase 1: store k and v (q, out not set).
  virtual void store(const AttentionCall& call) noexcept = 0;
  // Phase 2: attend (k, v, out not set).
  virtual void attend(const AttentionCall& call) noexcept = 0;
  // Phase 3: write out (q set, k and v not set).
  virtual void finish(const AttentionCall& call) noexcept = 0;
  // Whether compare_hidden() is to be called after the phases, where a graph is of one layer (asked
  // when it is built). It then costs a copy of the states.
  virtual bool compares_hidden() const { return false; }
  virtual void compare_hidden(const HiddenCall& call) noexcept { (void)call; }
};

}  // namespace precis
