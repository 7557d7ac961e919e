// BatchDecoder: one step of many sessions in one graph, so that the weights are read once for all.
//
// What is guaranteed: after step() every session holds the bits that session.extend({token}) would
// have left in it, whoever else was in the step, for any number of threads. Attention runs per
// session with the same kernels, slices and order of merging as alone; the matrices are multiplied
// so that a token's sums do not depend on its neighbours (src/model/layer_graph.h).
//
// Sessions come and go between steps; nothing of a session stays in the decoder. Between two steps
// a session may do anything else (prefill, extend by a question, fork, be destroyed). A scheduler
// that must not stop decoding while a long prompt is read calls step() from that prompt's progress
// callback (CallControl::progress): it runs between two graphs, when the backend is free.
#pragma once

#include <memory>
#include <span>

#include "engine/session.h"

namespace precis {

struct BatchEntry {
  Session* session = nullptr;
  Token token = 0;
};

// One thread at a time; other threads may use the engine, and sessions that are not in the step.
class BatchDecoder {
 public:
  // Most entries of one step. More gain nothing: from about 16 tokens on the products are bound by
  // arithmetic.
  static constexpr std::size_t kMaxEntries = 64;

  explicit BatchDecoder(std::shared_ptr<const Engine> engine);
  ~BatchDecoder();
  BatchDecoder(const BatchDecoder&) = delete;

  // Appends each entry's token to its session; logits are then in session.last_logits(). If it
  // throws, every session is as before the call. Throws Error: kInvalidArgument for no or too many
  // entries, a session of another engine or given twice, a token outside the vocabulary, a session
  // whose context is full (the message names the entry, counted from 0); kCancelled; kOutOfMemory.
  // control.progress is called once, at the end.
  // Memory: activations and logits (n_vocab floats an entry) of the largest step so far, and a
  // graph for each size seen. A step of a new size builds its graph; one larger than ever also
  // drops the others, which are built again when next used. All other steps allocate nothing but
  // room for tails and what ggml_graph_compute makes and frees (2 small pieces), as extend does.
  void step(std::span<const BatchEntry> entries, const CallControl& control = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace precis
