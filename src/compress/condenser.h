// The driver: takes the dense keys and values of one layer after another and returns what is kept
// of them. The layers may come as the prefill produces them (each can be freed at once) or later
// from a kept dense cache: the result is the same, bit for bit, for any number of workers.
//
// A method may decide over all layers: the budgets of the layers then depend on their scores. Of
// the layers so far the driver holds what they would keep if no other layer came, which is never
// more than the whole budget, and gives up the lowest entries as layers come. Beside these entries
// (as f16, whatever the row types) it holds a score for every token and head of the layers so far.
// A residual section is made of what is not kept, which is known only when all shares are: with
// one, such a method holds the dense rows and captured queries of all layers until finish(), and
// layers in which some head takes residual entries are selected and merged anew with their final
// share.
//
// Call order: condense_layer(0) condense_layer(1) ... condense_layer(n_layers - 1) finish().
// One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/executor.h"
#include "cache/kv_rows.h"
#include "compress/budget.h"
#include "compress/layer_draft.h"
#include "compress/method.h"
#include "compress/report.h"
#include "compress/step.h"

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
  // report().skipped; every row is then kept. `full` keeps everything whatever the
  // budget, and is not "skipped". fixed_bytes: cache bytes outside the listed layers (sliding
  // layers), charged to a budget in bytes. rows: how entries are stored; a budget as a ratio or in
  // tokens is relative to the whole cache stored so. Throws Error(kUnsupported) if a layer's head
  // size does not fit the row types, and for quantised rows with decode=step.
  //
  // With decode=step what is remembered of an entry counts as its bytes, and the budget is that of
  // the cache to come too: a budget in tokens or bytes that the prompt does not fill is left to
  // what comes after it, shared evenly by all heads; one that does not hold the protected tokens is
  // refused also where the prompt is shorter. A ratio is of the prompt's cache, also 100%; of a
  // prompt not longer than the protected tokens it is none, and nothing is ever evicted.
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
  void condense_layer(std::size_t layer, const TailRows& dense, const ObservedQueries& observed,
                      Executor& executor, const CancelFlag* cancel = nullptr);
  // What is kept of every layer. Once, after the last layer. Throws as condense_layer does.
  std::vector<FrozenLayer> finish(Executor& executor, const CancelFlag* cancel = nullptr);

  // Where the text goes on, relative to the prompt's first position: after its last token, or after
  // the last place of the method's positions stage. After finish().
  std::size_t next_place() const { return next_place_; }

  // decode=step, after finish(): what the prompt leaves behind of each entry, [layer][head]; empty:
  // nothing is evicted later. Can be taken once.
  std::vector<std::vector<StepCarry>> take_carries() { return std::move(carries_); }
  // Entries that each head may have in the end; 0: as many as it has now.
  std::size_t step_entries() const { return step_entries_; }
  const StepRules& step_rules() const { return step_rules_; }

  // Complete after finish().
  const CompressionReport& report() const { return report_; }

 private:
  // What entries of a layer are chosen by.
  struct Ranking {
    std::vector<float> scores;        // [heads, n_tokens]
    std::vector<float> output_norms;  // the same, or empty
    double hidden_cosine = 0;         // LayerTable::hidden_cosine
    std::size_t bytes() const { return (scores.size() + output_norms.size()) * sizeof(float); }
  };
  // A layer that is scored; its entries may change until finish().
  struct Layer {
    LayerDraft draft;
    Ranking ranking;  // while entries may be given up
  };

  // What the residual section of a layer is made of, while the layer's share of the budget is open.
  struct Waiting {
    TailRows dense;
    ObservedQueries observed;
    std::size_t bytes() const;
  };

  void plan_budget(const Budget& budget, std::size_t fixed_bytes);
  void plan_layers(std::size_t least);
  // Bytes of n entries in every head.
  std::size_t all_layers_bytes(std::size_t n) const;
  // Whether the prompt and more have room in so many bytes; decode=step only.
  bool has_room_to_grow(std::size_t bytes);
  [[noreturn]] void refuse_few_entries(const Budget& budget, std::size_t n_entries,
                                       std::size_t needed, std::size_t whole,
                                       std::size_t fixed_bytes) const;
  std::vector<HeadView> make_heads(std::size_t layer, const TailRows& dense,
                                   const ObservedQueries& observed, const CancelFlag* cancel) const;
  std::vector<float> score(std::vector<HeadView>& heads, Executor& executor) const;
  // What the selector reads beside scores; may be empty.
  std::vector<float> output_norms(std::vector<HeadView>& heads, Executor& executor) const;
  LayerTable table_of(std::size_t layer, const Ranking& ranking, std::size_t n_entries) const;
  std::vector<HeadPlan> select(const LayerTable& table) const;
  // Where merging is to think that tokens stand; empty: at their own places.
  std::vector<std::vector<std::int32_t>> places_of(const std::vector<HeadPlan>& plans) const;
  std::vector<HeadMerge> merge(std::vector<HeadView>& heads, const std::vector<HeadPlan>& plans,
                               Executor& executor) const;
  // Biases that a layer's entries would have if no other layer counted; empty without a bias.
  std::vector<std::vector<float>> trial_biases(const std::vector<HeadPlan>& plans,
                                               const std::vector<HeadMerge>& merges) const;
  // Whether the prompt is long enough for the residual stage; the report says so if not.
  bool can_hold_out();
  // Shares what the pure method spends on a layer between main and residual entries: plans and
  // merges become those of the split that each head takes. Returns the residual entries, [heads];
  // empty if the prompt is too short for the stage. heads have their scores.
  std::vector<ResidualEntries> split_layer(const LayerTable& table, const RowTypes& rows,
                                           std::vector<HeadView>& heads,
                                           std::vector<HeadPlan>& plans,
                                           std::vector<HeadMerge>& merges, Executor& executor);
  // Gives the layers that waited for their shares of the budget their residual sections.
  void add_residuals(Executor& executor, const CancelFlag* cancel);
  bool uses_bias() const {
    return method_.compensator != nullptr && method_.compensator->uses_bias();
  }
  // Whether layers give up entries for later ones.
  bool shares_by_scores() const {
    return !keeps_everything_ && method_.layers != nullptr && method_.layers->sees_scores();
  }
  // Whether a layer waits for the later ones.
  bool stays_open() const {
    return shares_by_scores() ||
           (!keeps_everything_ && uses_bias() && method_.compensator->needs_all_layers());
  }
  // Bytes of n entries in the heads of a layer together, at most.
  std::size_t layer_bytes(const LayerShape& layer, const RowTypes& rows, std::size_t n) const;
  std::size_t most_entries(const LayerShape& layer, const RowTypes& rows, std::size_t bytes) const;
  std::size_t entries_of_layer(std::size_t layer, const RowTypes& rows) const;
  RowTypes choose_rows(std::vector<HeadView>& heads, Executor& executor);
  // What each of the layers that were scored may keep when all layers may keep n_entries.
  std::vector<std::size_t> divide(std::span<const LayerTable> done, std::size_t n_entries) const;
  // Lets a new layer take its share from the earlier ones; returns how much that is.
  std::size_t make_room(std::size_t layer, const Ranking& ranking);
  void give_up(std::size_t layer, std::size_t n_entries);
  // What is remembered of entries that are gone goes too.
  void trim_carries(std::size_t layer);
  // Gives up entries until the layers fit in the budget's bytes.
  void fit_bytes();
  // Of n drafts from `first` on.
  void add_biases(std::size_t first, std::size_t n);
  void freeze_drafts(Executor& executor, const CancelFlag* cancel);
  void note_held();
  void carry_steps(std::vector<HeadView>& heads, const std::vector<HeadPlan>& plans,
                   Executor& executor);
  // The whole layer, as it is.
  void keep_layer(std::vector<HeadView>& heads, const TailRows& dense, const RowTypes& rows,
                  Executor& executor, const CancelFlag* cancel);
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
  // Of all heads together, of each layer, as far as it is known before the scores; empty: keeps
  // everything.
  std::vector<std::size_t> layer_entries_;
  std::size_t allowed_bytes_ = 0;  // of the listed layers
  std::size_t next_layer_ = 0;
  std::size_t next_place_ = 0;
  std::vector<Layer> drafts_;        // of the layers that stay open
  std::vector<Waiting> waiting_;     // as drafts_, if they get residual sections; else empty
  std::vector<double> weights_;      // LayerBudgets::weigh() of the layers so far
  std::vector<FrozenLayer> frozen_;  // the finished ones before those
  StepRules step_rules_;             // decode=step
  std::size_t step_entries_ = 0;
  std::vector<std::vector<StepCarry>> carries_;
  CompressionReport report_;
};

}  // namespace precis
