// Synthetic layers for the tests of stages, driver and methods: dense keys and values, the queries
// of the whole prompt and their log-sum-exps, all made from a seed.
#pragma once

#include <atomic>
#include <cmath>
#include <cstring>
#include <exception>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/executor.h"
#include "cache/kv_rows.h"
#include "compress/condenser.h"
#include "kernels/attention_ref.h"

namespace precis::test {

// A thread per worker, tasks taken in order of arrival: unlike the engine's pool on purpose.
class ThreadExecutor final : public Executor {
 public:
  explicit ThreadExecutor(std::size_t n_workers) : n_workers_(n_workers) {}

  std::size_t n_workers() const override { return n_workers_; }

  void run(std::size_t n_tasks,
           const std::function<void(std::size_t, std::size_t)>& task) override {
    std::atomic<std::size_t> next{0};
    std::atomic<bool> failed{false};
    std::mutex mutex;
    std::exception_ptr first;
    std::vector<std::thread> threads;
    for (std::size_t worker = 0; worker < n_workers_; ++worker)
      threads.emplace_back([&, worker] {
        for (std::size_t i = next++; i < n_tasks && !failed; i = next++) {
          try {
            task(i, worker);
          } catch (...) {
            const std::lock_guard<std::mutex> lock(mutex);
            if (!first) first = std::current_exception();
            failed = true;
          }
        }
      });
    for (std::thread& thread : threads) thread.join();
    if (first) std::rethrow_exception(first);
  }

 private:
  std::size_t n_workers_;
};

enum class Pattern {
  kRandom,     // independent normal numbers
  kZeros,      // everything 0
  kEqualKeys,  // one key for all tokens
  kHuge,       // signs times the largest f16
  kRepeated,   // few distinct tokens, so that scores and routes tie
};

inline const char* pattern_name(Pattern pattern) {
  switch (pattern) {
    case Pattern::kRandom:
      return "random";
    case Pattern::kZeros:
      return "zeros";
    case Pattern::kEqualKeys:
      return "equal_keys";
    case Pattern::kHuge:
      return "huge";
    case Pattern::kRepeated:
      return "repeated";
  }
  return "";
}

struct LayerCase {
  LayerShape shape;
  std::size_t n_tokens = 0;
  TailRows dense;
  ObservedQueries observed;  // of the whole prompt
};

// The queries of KV head `head` for the tokens [first, n) as f32, [n - first, group, head_dim].
inline std::vector<float> query_rows(const LayerCase& layer, std::size_t head, std::size_t first) {
  const ObservedQueries& from = layer.observed;
  const std::size_t group = layer.shape.group;
  std::vector<float> rows;
  for (std::size_t t = first; t < layer.n_tokens; ++t)
    for (std::size_t g = 0; g < group; ++g) {
      const float* row =
          from.queries.data() +
          ((head * group + g) * from.n_tokens + from.n_tokens - layer.n_tokens + t) * from.head_dim;
      rows.insert(rows.end(), row, row + from.head_dim);
    }
  return rows;
}

// Causal visibility of tokens [first, n).
inline std::vector<Visible> causal(std::size_t first, std::size_t n) {
  std::vector<Visible> visible;
  for (std::size_t t = first; t < n; ++t) visible.push_back({0, static_cast<std::uint32_t>(t + 1)});
  return visible;
}

// Fills in the log-sum-exps with the reference attention. Call it after changing keys or queries.
// observed may hold the last queries of the prompt only.
inline void observe(LayerCase& layer) {
  const std::size_t n = layer.observed.n_tokens;
  const std::size_t first = layer.n_tokens - n;
  const std::size_t group = layer.shape.group;
  const std::size_t width = layer.shape.kv.head_dim;
  layer.observed.log_sum_exp.assign(layer.observed.n_heads * n, 0.0f);
  const std::vector<Visible> visible = causal(first, layer.n_tokens);
  for (std::size_t h = 0; h < layer.shape.kv.n_kv_heads; ++h) {
    const std::vector<float> rows = query_rows(layer, h, first);
    const EntryView entries = layer.dense.head(h);
    const Visible* ranges = visible.data();
    std::vector<double> output(n * group * width);
    std::vector<double> log_sum_exp(n * group);
    reference::attention({rows.data(), n, group, width, group * width}, &entries, 1,
                         layer.shape.rule, &ranges, output.data(), log_sum_exp.data());
    for (std::size_t t = 0; t < n; ++t)
      for (std::size_t g = 0; g < group; ++g)
        layer.observed.log_sum_exp[(h * group + g) * n + t] =
            static_cast<float>(log_sum_exp[t * group + g]);
  }
}

inline LayerCase make_layer(const LayerShape& shape, std::size_t n_tokens, Pattern pattern,
                            std::uint32_t seed) {
  const std::size_t width = shape.kv.head_dim;
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  const auto draw = [&] {
    const float x = normal(engine);
    if (pattern == Pattern::kZeros) return 0.0f;
    return pattern == Pattern::kHuge ? std::copysign(65504.0f, x) : x;
  };
  LayerCase layer;
  layer.shape = shape;
  layer.n_tokens = n_tokens;
  layer.dense = TailRows(shape.kv, 0);
  layer.dense.reserve(n_tokens);
  layer.dense.grow(n_tokens);
  for (std::size_t h = 0; h < shape.kv.n_kv_heads; ++h)
    for (std::size_t t = 0; t < n_tokens; ++t) {
      const std::size_t source = pattern == Pattern::kRepeated    ? t % 5
                                 : pattern == Pattern::kEqualKeys ? 0
                                                                  : t;
      Half* key = layer.dense.key_row(h, t);
      Half* value = layer.dense.value_row(h, t);
      for (std::size_t c = 0; c < width; ++c) {
        key[c] = source < t ? layer.dense.key_row(h, source)[c] : to_half(draw());
        value[c] = pattern == Pattern::kRepeated && source < t ? layer.dense.value_row(h, source)[c]
                                                               : to_half(draw());
      }
    }
  layer.observed.n_heads = shape.kv.n_kv_heads * shape.group;
  layer.observed.n_tokens = n_tokens;
  layer.observed.head_dim = width;
  layer.observed.queries.resize(layer.observed.n_heads * n_tokens * width);
  for (float& x : layer.observed.queries) x = draw();
  observe(layer);
  // As if the prompt had been repeated in KVzip's chunks; far below any probability where huge.
  layer.observed.repeat_chunk = 2048;
  for (std::size_t i = 0; i < shape.kv.n_kv_heads * n_tokens; ++i)
    layer.observed.log_peaks.push_back(-std::abs(draw()));
  for (std::size_t t = 0; t < n_tokens; ++t)
    layer.observed.hidden_cosines.push_back(std::tanh(1 + draw()));
  return layer;
}

// The bits of everything in a frozen layer, for equality.
inline std::string fingerprint(const FrozenLayer& layer) {
  std::string out;
  const auto add = [&](const void* data, std::size_t bytes) {
    out.append(static_cast<const char*>(data), bytes);
  };
  for (std::size_t h = 0; h < layer.shape().n_kv_heads; ++h) {
    const PackedView view = layer.head(h);
    const std::size_t width = layer.shape().head_dim;
    add(&view.n, sizeof view.n);
    add(&view.types, sizeof view.types);
    add(view.keys, key_bytes(view.types.keys, width, view.n));
    add(view.values, value_bytes(view.types.values, width, view.n));
    for (std::size_t i = 0; i < view.n; ++i) {
      const float bias = view.bias == nullptr ? 0.0f : view.bias[i];
      const std::int32_t position = layer.position(h, i);
      add(&bias, sizeof bias);
      add(&position, sizeof position);
    }
    const PackedView residual = layer.residual(h);
    add(&residual.n, sizeof residual.n);
    add(residual.keys, key_bytes(residual.types.keys, width, residual.n));
    add(residual.values, value_bytes(residual.types.values, width, residual.n));
    add(residual.bias, residual.n * sizeof(float));
    const SharpnessGate& gate = layer.gate(h);
    for (const float number : {gate.low, gate.high, gate.least}) add(&number, sizeof number);
  }
  const std::size_t bytes = layer.bytes();
  add(&bytes, sizeof bytes);
  return out;
}

// Positions kept by a head as they are, ascending.
inline std::vector<std::int32_t> kept_positions(const FrozenLayer& layer, std::size_t head) {
  std::vector<std::int32_t> positions;
  for (std::size_t i = 0; i < layer.n_main(head); ++i) positions.push_back(layer.position(head, i));
  return positions;
}

// A HeadView over one KV head of a layer, with the queries of the whole prompt.
inline HeadView view_head(const LayerCase& layer, std::size_t head) {
  HeadView view;
  view.n_layers = 1;
  view.head = head;
  view.n_kv_heads = layer.shape.kv.n_kv_heads;
  view.n_tokens = layer.n_tokens;
  view.head_dim = layer.shape.kv.head_dim;
  view.entries = layer.dense.head(head);
  view.rule = layer.shape.rule;
  view.first_position = layer.dense.first_position();
  view.rope = layer.shape.rope;
  view.output = layer.shape.output;
  view.group = layer.shape.group;
  view.n_queries = layer.observed.n_tokens;
  const std::size_t first_row = head * view.group * view.n_queries;
  view.queries = layer.observed.queries.data() + first_row * view.head_dim;
  view.log_sum_exp = layer.observed.log_sum_exp.data() + first_row;
  view.log_peaks = layer.observed.log_peaks.data() + head * layer.n_tokens;
  return view;
}

// A condenser's only layer.
inline FrozenLayer condense_only(Condenser& condenser, const TailRows& dense,
                                 const ObservedQueries& observed, Executor& executor,
                                 const CancelFlag* cancel = nullptr) {
  condenser.condense_layer(0, dense, observed, executor, cancel);
  return std::move(condenser.finish(executor, cancel).at(0));
}

}  // namespace precis::test
