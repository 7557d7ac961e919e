// The live cache of a session: one LayerCache a layer, and the attention over it that the model's
// graphs call.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "base/executor.h"
#include "cache/kv_rows.h"
#include "compress/stage.h"
#include "engine/step_cache.h"
#include "kernels/attention.h"
#include "kernels/sharpness_gate.h"
#include "model/attention_op.h"
#include "model/config.h"

namespace precis {

// Condensed rows (shared, may be null), then everything that came later: the packed tail (only
// where rows are quantised), then the tail in f16. A sliding layer has only a tail, trimmed to its
// window. With decode=step a condensed layer has all its rows in `stepped`, and nothing else.
struct LayerCache {
  std::shared_ptr<const FrozenLayer> frozen;
  std::vector<PackedList> packed_tail;  // [n_kv_heads] or empty; whole groups
  TailRows tail;
  std::optional<StepCache> stepped;

  std::size_t packed_size() const { return packed_tail.empty() ? 0 : packed_tail[0].size(); }
  std::size_t used_bytes() const;
};

// Rows that have aged: all but the last 32 to 63 of the tail move to the packed tail, in whole
// groups. Quantised keys need a whole group (row_type.h), and the newest tokens stay exact, as in
// KIVI (arXiv 2402.02750). Without memory for it nothing changes.
void pack_aged_rows(LayerCache& cache, const RowTypes& types);

// Attention of every layer of one session. The result does not depend on the number of threads:
// work is cut into (KV head, tile of queries, slice of entries) by fixed sizes and partial states
// are merged in that order.
class CacheAttention final : public AttentionOp {
 public:
  CacheAttention(const ModelConfig& config, std::vector<LayerCache>& layers, std::size_t n_threads);

  void set_cancel(const CancelFlag* cancel) { cancel_ = cancel; }
  // Captures what `observed` was sized for: the queries of the last observed->n_tokens tokens of a
  // prompt of n_prompt, and blocks of observed->block positions; nullptr stops. Prompt token = tail
  // row.
  void observe(ObservedQueries* observed, std::size_t n_prompt);
  // What the gate of a head's residual section did to the queries of all calls so far.
  GateTally gate_tally(std::size_t layer, std::size_t head) const;
  void reset_gate_tallies();
  // True if work was left out because the cancel flag was up; cleared by reading.
  bool take_cancelled() { return cancelled_.exchange(false); }

  // For layers with `stepped`: a call takes at most StepCache::kChunk tokens, whose attention the
  // step caches have then observed; the caller commits or drops them.
  void prepare(std::size_t first_layer, std::size_t last_layer, std::size_t n_tokens) override;
  void store(const AttentionCall& call) noexcept override;
  void attend(const AttentionCall& call) noexcept override;
  void finish(const AttentionCall& call) noexcept override;
  bool compares_hidden() const override {
    return observed_ != nullptr && !observed_->hidden_cosines.empty();
  }
  void compare_hidden(const HiddenCall& call) noexcept override;

  // The pieces of attend() and finish(), for a caller that spreads the work of several caches over
  // the threads itself. Pieces of one call may run on any threads at once; all pieces of attend()
  // must have ended before the first of finish(). Call.thread and n_threads are not looked at.
  std::size_t n_attend_tasks(std::size_t layer, std::size_t n_tokens) const;
  void attend_task(const AttentionCall& call, std::size_t task, Scratch& scratch) noexcept;
  std::size_t n_finish_tasks(std::size_t layer, std::size_t n_tokens) const;
  void finish_task(const AttentionCall& call, std::size_t task) noexcept;

 private:
  // The lists of a layer, in order of position; then the residual entries, which are merged last:
  // their gate looks at all the others.
  enum Section : std::size_t { kFrozen, kPackedTail, kTail, kResidual, kSections };
  // How one call on one layer is cut.
  struct Plan {
    std::size_t n_tiles = 0;
    std::size_t slice[kSections] = {};     // entries in a slice
    std::size_t n_slices[kSections] = {};  // slices of the longest head
    std::size_t exact_slices() const { return n_slices[0] + n_slices[1] + n_slices[2]; }
    std::size_t all_slices() const { return exact_slices() + n_slices[kResidual]; }
  };
  Plan plan_of(std::size_t layer, std::size_t n_tokens) const;
  StateView state(std::size_t slice, std::size_t head, std::size_t first_token,
                  std::size_t n_tokens);
  void attend_slice(const AttentionCall& call, const Plan& plan, std::size_t head, std::size_t tile,
                    std::size_t slice, Scratch& scratch);
  // The same of a layer with `stepped`, whose rows are one list.
  void attend_stepped(const AttentionCall& call, const QueryView& queries, std::size_t head,
                      std::size_t begin, std::size_t end, const StateView& state, Scratch& scratch);
  void observe_stepped(const AttentionCall& call, std::size_t head, const StateView& total);
  // Where the logits of a head's rows are kept, [tokens, group, stride].
  float* step_logits(const StepCache& cache, std::size_t head, std::size_t n_tokens,
                     std::size_t& stride);
  void count_gated(std::size_t layer, std::size_t head, const GateTally& tally);
  void capture(const AttentionCall& call);
  void capture_sums(const AttentionCall& call, std::size_t head, std::size_t first_token,
                    std::size_t n_tokens, const float* log_sum_exp);

  const ModelConfig& config_;
  std::vector<LayerCache>& layers_;
  const CancelFlag* cancel_ = nullptr;
  std::atomic<bool> cancelled_{false};
  ObservedQueries* observed_ = nullptr;
  std::size_t n_prompt_ = 0;
  std::vector<std::atomic<std::size_t>> next_task_;  // [n_layers]
  // Tiles of one head end on any threads.
  std::vector<std::atomic<std::uint64_t>> gate_tallies_;  // [n_layers, n_kv_heads, 4]
  std::vector<Scratch> scratch_;                          // [n_threads]
  std::vector<float> tile_sums_;                          // [n_threads, tile tokens, group]
  std::vector<float> state_max_;                          // [n_slices, n_heads, n_tokens]
  std::vector<float> state_sum_;
  std::vector<float> state_out_;    // [n_slices, n_heads, n_tokens, head_dim]
  std::vector<float> step_logits_;  // [n_heads, n_tokens, entries]
  std::vector<float> step_sums_;    // [n_heads, n_tokens]
};

}  // namespace precis
