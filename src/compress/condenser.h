// The driver: takes the dense keys and values of one layer after another and returns what is kept
// of them. The layers may come as the prefill produces them (each can be freed at once) or later
// from a kept dense cache: the result is the same, bit for bit, for any number of workers.
//
// Call order: condense_layer(0) condense_layer(1) ... condense_layer(n_layers - 1). One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/executor.h"
#include "cache/kv_rows.h"
#include "compress/budget.h"
#include "compress/method.h"
#include "compress/report.h"

namespace precis {

// Shape of one compressible layer (sliding-window layers are never compressed and not listed).
struct LayerShape {
  KvShape kv;
  std::size_t group = 1;  // query heads per KV head
  LogitRule rule;
  // As in HeadView; they outlive the condenser.
  const Rope* rope = nullptr;
  const OutputProjection* output = nullptr;
};

class Condenser {
 public:
  // Decides everything that does not depend on the data. Throws Error(kInvalidArgument) if the
  // budget is below the protected tokens (message: both numbers, in entries per head), leaves no
  // entry at all or, in bytes, is below fixed_bytes; and if n_tokens is 0. A prompt not longer than
  // the method's protected tokens, or a budget of at least the dense bytes, is left whole: see
  // report().skipped; condense_layer then returns every row. `full` keeps everything whatever the
  // budget, and is not "skipped". fixed_bytes: cache bytes outside the listed layers (sliding
  // layers), charged to a budget in bytes. rows: how entries are stored; a budget as a ratio or in
  // tokens is relative to the whole cache stored so. Throws Error(kUnsupported) if a layer's head
  // size does not fit the row types.
  Condenser(Method method, Budget budget, std::vector<LayerShape> layers, std::size_t n_tokens,
            std::uint64_t seed, std::size_t fixed_bytes = 0, RowTypes rows = {});

  // Has the report say more than sums; before the first layer.
  void report_details() { details_ = true; }

  bool keeps_everything() const { return keeps_everything_; }
  // What the prefill must keep of every layer.
  const Observation& observation() const { return observation_; }
  // m: entries per KV head on average over the layers.
  std::size_t entries_per_head() const { return entries_per_head_; }

  // `layer` counts compressible layers from 0. REQUIRES: dense.size() == n_tokens and observed
  // serves observation(). Throws Error(kCancelled) when the flag is raised: the condenser is then
  // spent.
  FrozenLayer condense_layer(std::size_t layer, const TailRows& dense,
                             const ObservedQueries& observed, Executor& executor,
                             const CancelFlag* cancel = nullptr);

  const CompressionReport& report() const { return report_; }

 private:
  void plan_budget(const Budget& budget, std::size_t fixed_bytes);
  void plan_layers(std::size_t least);
  std::vector<HeadView> make_heads(std::size_t layer, const TailRows& dense,
                                   const ObservedQueries& observed, const CancelFlag* cancel) const;
  std::vector<float> score(std::vector<HeadView>& heads, Executor& executor) const;
  // What the selector reads beside scores; may be empty.
  std::vector<float> output_norms(std::vector<HeadView>& heads, Executor& executor) const;
  std::vector<HeadPlan> select(std::size_t layer, const std::vector<float>& scores,
                               const std::vector<float>& output_norms,
                               std::size_t entries_per_head) const;
  std::vector<HeadMerge> merge(std::vector<HeadView>& heads, const std::vector<HeadPlan>& plans,
                               Executor& executor) const;
  bool uses_bias() const {
    return method_.compensator != nullptr && method_.compensator->uses_bias();
  }
  // Bytes of m entries in every head of a layer, at most.
  std::size_t layer_bytes(const LayerShape& layer, const RowTypes& rows, std::size_t m) const;
  std::size_t most_entries(const LayerShape& layer, const RowTypes& rows, std::size_t bytes) const;
  std::size_t entries_of_layer(std::size_t layer, const RowTypes& rows) const;
  RowTypes choose_rows(std::vector<HeadView>& heads, Executor& executor);
  void record(std::size_t layer, const FrozenLayer& frozen);

  Method method_;
  std::vector<LayerShape> layers_;
  std::size_t n_tokens_;
  std::uint64_t seed_;
  RowTypes rows_;
  bool details_ = false;
  bool keeps_everything_ = false;
  Observation observation_;
  std::size_t entries_per_head_ = 0;
  std::vector<std::size_t> layer_entries_;  // per KV head, of each layer; empty: keeps everything
  std::size_t allowed_bytes_ = 0;           // of the listed layers
  std::size_t next_layer_ = 0;
  CompressionReport report_;
};

}  // namespace precis
