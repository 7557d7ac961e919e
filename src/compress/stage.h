// The seam of the methods: what a stage sees and what it returns. A compression method is one
// scorer, one selector, optional budgets of layers, an optional merger, an optional compensator.
// Stages are stateless: parameters are fixed at construction, randomness comes from HeadView::seed,
// every method is const and thread-safe. Stages see plain views; no ggml, no model. They throw
// Error only for parameters that cannot fit the given prompt; they must stay finite on any finite
// input.
//
// Index order is layer, head, token, channel; "head" is always a KV head, "group" its query heads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/executor.h"
#include "base/half.h"
#include "kernels/attention.h"
#include "kernels/rope.h"

namespace precis {

class OutputProjection;
class StepMerger;
class StepScorer;

// What a method reads of a prompt's attention, beside keys and values.
struct Observation {
  std::size_t n_queries = 0;  // queries of the last n_queries tokens
  // Attention within blocks of so many positions, of every token; 0: none.
  std::size_t block = 0;
  // The prompt is read a second time, repeated in chunks of so many tokens; 0: it is not.
  std::size_t repeat_chunk = 0;
  // How much attention changes the hidden state of every token.
  bool hidden_cosine = false;

  bool none() const { return n_queries == 0 && block == 0 && repeat_chunk == 0 && !hidden_cosine; }
};

// What was kept in passing during the prefill of one layer.
struct ObservedQueries {
  std::size_t n_heads = 0;   // query heads H
  std::size_t n_tokens = 0;  // captured: the last n_tokens of the prompt
  std::size_t head_dim = 0;
  // f32 as the graph made them: with queries rounded to f16, logits in the hundreds (Qwen2.5's
  // first layer) moved by 0.02 against their log-sum-exp, and Eq. 3 then weighed query heads
  // wrongly.
  std::vector<float> queries;      // [n_heads, n_tokens, head_dim], post-RoPE
  std::vector<float> log_sum_exp;  // [n_heads, n_tokens] of the row's logits over all it may see
  // As log_block_attention() makes it. At 8k tokens of SmolLM2 and 32 positions a sixth of the
  // queries that it is made of, which would be 19 MB a layer.
  std::size_t block = 0;
  std::vector<float> block_attention;  // [KV heads, tokens of the prompt, block]
  // Logarithm of the most attention that each token got when the prompt was repeated (see
  // engine/repeat_pass.h), and how long that took.
  std::size_t repeat_chunk = 0;
  std::vector<float> log_peaks;  // [KV heads, tokens of the prompt], <= 0; empty: not repeated
  double repeat_ms = 0;
  // Cosine of the angle between the residual stream before attention and after it was added, of
  // each token of the prompt, in -1 ... 1; empty: not observed. A state that stays 0 has 1, one
  // that is 0 on one side only has 0.
  std::vector<float> hidden_cosines;

  // Whether a method that wants `wanted` of a prompt of n_prompt tokens finds it here.
  bool serves(const Observation& wanted, std::size_t n_prompt) const;
};

// One KV head of one layer, as a stage sees it. Owned by one thread at a time: the derived
// statistics are computed on first use and remembered.
class HeadView {
 public:
  std::size_t layer = 0;
  std::size_t n_layers = 0;
  std::size_t head = 0;
  std::size_t n_kv_heads = 0;
  std::size_t n_tokens = 0;
  std::size_t head_dim = 0;
  EntryView entries;  // keys, values [n_tokens, head_dim]; no bias
  LogitRule rule;
  std::size_t group = 1;               // query heads of this KV head
  std::size_t n_queries = 0;           // captured tokens: the last n_queries of the prompt
  const float* queries = nullptr;      // [group, n_queries, head_dim]
  const float* log_sum_exp = nullptr;  // [group, n_queries]
  std::size_t observed_block = 0;      // 0: none was observed
  const float* observed_block_attention = nullptr;  // [n_tokens, observed_block]
  std::uint64_t seed = 0;                           // already mixed with layer and head
  const float* log_peaks = nullptr;  // [n_tokens], nullptr: the prompt was not repeated
  // Where tokens are thought to stand when attention is observed, instead of at their own position:
  // relative to the prompt's first, [n_tokens], ascending. nullptr: at their own.
  const std::int32_t* places = nullptr;
  const float* scores = nullptr;       // the method's own, [n_tokens], for what runs after scoring
  const CancelFlag* cancel = nullptr;  // long loops call throw_if_cancelled(cancel) now and then

  // Of the prompt's first token; the others follow it.
  std::int32_t first_position = 0;
  // How keys and queries were turned; nullptr: not at all.
  const Rope* rope = nullptr;
  // W_O of the layer; nullptr: unknown.
  const OutputProjection* output = nullptr;

  // Query of member g of the group at a token of the prompt, [head_dim], and the log-sum-exp of its
  // row. REQUIRES: token is among the last n_queries.
  const float* query(std::size_t member, std::size_t token) const {
    return queries + query_row(member, token) * head_dim;
  }
  float query_log_sum_exp(std::size_t member, std::size_t token) const {
    return log_sum_exp[query_row(member, token)];
  }

  // a[j] of SelKV Eq. 1: attention that token j received from the last min(window, n_tokens)
  // queries, summed over them and over the group. [n_tokens]. REQUIRES: n_queries >= min(window,
  // n_tokens). With places, keys and queries are turned there first; where there is no rope nothing
  // changes.
  std::span<const float> window_mass(std::size_t window);
  // log A[t, i] of SelKV Eq. 3 (A summed over the group), [n_tokens, width] with width = min(block,
  // n_tokens): what token t attends to at the block's i-th token, -inf for later ones than t.
  // REQUIRES: observed with this width, or the queries of all tokens.
  std::span<const float> block_attention(std::size_t block);
  // ||v_j||_2, [n_tokens].
  std::span<const float> value_norms();
  // ||W_O v_j||_1 of each query head of the group, [group, n_tokens]. REQUIRES: output.
  std::span<const float> output_norms();
  // R of each query head with ||R x||_2 = ||W_O x||_2, [group, head_dim, head_dim]. REQUIRES:
  // output.
  std::span<const float> output_factors();
  Scratch& scratch() { return scratch_; }

 private:
  // Queries of tokens [first, first + n), [n, group, head_dim], and their log-sum-exps, [n, group].
  void gather_queries(std::size_t first, std::size_t n, float* rows, float* row_sums) const;

  // The keys of all tokens, turned to `places`.
  void turn_keys();

  std::size_t query_row(std::size_t member, std::size_t token) const {
    return member * n_queries + (token + n_queries - n_tokens);
  }

  Scratch scratch_;
  std::vector<std::pair<std::size_t, std::vector<float>>> window_mass_;
  std::vector<Half> turned_keys_;  // [n_tokens, head_dim]
  std::vector<float> block_attention_;
  std::vector<float> value_norms_;
  std::vector<float> output_norms_;
  std::vector<float> output_factors_;
};

class Scorer {
 public:
  virtual ~Scorer() = default;
  // Importance of each token for this head, higher is kept. scores is [n_tokens].
  virtual void score(HeadView& head, std::span<float> scores) const = 0;
  // How many of the prompt's last queries score() reads; the driver has them captured.
  virtual std::size_t queries_needed(std::size_t n_tokens) const {
    (void)n_tokens;
    return 0;
  }
  // Chunks in which score() wants the prompt repeated; 0: it does not.
  virtual std::size_t repeat_chunk() const { return 0; }
  // What it does at every token after the prompt (step.h); nullptr: its paper condenses once.
  virtual const StepScorer* step() const { return nullptr; }
};

// Tokens that the driver keeps in every head whatever the scores say.
struct Protection {
  std::size_t n_sinks = 0;   // first tokens
  std::size_t n_recent = 0;  // last tokens

  bool covers(std::size_t token, std::size_t n_tokens) const {
    return token < n_sinks || token + n_recent >= n_tokens;
  }
  std::size_t count(std::size_t n_tokens) const {
    return n_sinks + n_recent < n_tokens ? n_sinks + n_recent : n_tokens;
  }
};

// The scores of one layer and what may be spent on it.
struct LayerTable {
  std::size_t layer = 0;
  std::size_t n_layers = 0;  // compressible layers; `layer` counts among them
  std::size_t n_kv_heads = 0;
  std::size_t n_tokens = 0;
  const float* scores = nullptr;  // [n_kv_heads, n_tokens]
  // Mean over the group of HeadView::output_norms(), [n_kv_heads, n_tokens], if the selector reads
  // them.
  const float* output_norms = nullptr;
  Protection protection;
  std::size_t floor = 0;      // Selector::floor()
  std::size_t n_entries = 0;  // of all heads together, with protected tokens
  // Mean of ObservedQueries::hidden_cosines, if the layers stage reads it.
  double hidden_cosine = 0;

  // m, for selectors that give every head the same. >= protection.count(n_tokens), <= n_tokens
  std::size_t entries_per_head() const { return n_entries / n_kv_heads; }
};

// Which tokens one head keeps. Both lists ascend strictly; targets is a subset of kept.
struct HeadPlan {
  std::vector<std::uint32_t> kept;     // protected tokens included
  std::vector<std::uint32_t> targets;  // S_h of SelKV Eq. 3: kept tokens that may receive merges
};

// How entries are evicted one by one after the prompt: not at all, each KV head by its own scores,
// or the same tokens in all heads of a layer.
enum class StepScope { kNone, kHead, kLayer };

// Selects for a whole layer at once, so that budgets may be shared between its heads.
class Selector {
 public:
  virtual ~Selector() = default;
  virtual Protection protection() const = 0;
  // Whether select() reads LayerTable::output_norms.
  virtual bool reads_output_norms() const { return false; }
  // Entries that every head gets beside the protected ones, whatever the others score.
  virtual std::size_t floor() const { return 0; }
  // One plan per KV head. The sum of the kept counts must not exceed n_entries; ties are broken
  // towards the earlier token.
  virtual std::vector<HeadPlan> select(const LayerTable& table) const = 0;
  virtual StepScope step_scope() const { return StepScope::kNone; }
};

// How a budget is shared out over the layers: before anything of them is seen, or by what is seen.
class LayerBudgets {
 public:
  virtual ~LayerBudgets() = default;
  // Whether it wants to see the scores. The driver then calls divide(), otherwise entries().
  virtual bool sees_scores() const { return false; }
  // Whether it reads LayerTable::hidden_cosine.
  virtual bool reads_hidden_cosine() const { return false; }
  // The entries per KV head that each of n_layers layers should get when the mean is
  // entries_per_head, [n_layers], finite. Only their proportions and bounds matter: the driver
  // keeps each between the protected tokens and all but one of n_tokens, and the sum to the budget.
  virtual std::vector<double> entries(std::size_t n_layers, std::size_t entries_per_head,
                                      const Protection& protection) const;
  // What divide() wants to know of a layer, asked once per layer, finite.
  virtual double weigh(const LayerTable& table) const;
  // Called whenever another layer was scored: the entries of all heads together that each layer so
  // far should have now, [done.size()], finite, when n_entries is what all layers may have in the
  // end. What a layer gives up for the layers after it is gone: a wish that grows from call to
  // call is met with what the layer still has, and part of the budget stays free. done[l].n_entries
  // is not set. weights are those of weigh().
  virtual std::vector<double> divide(std::span<const LayerTable> done,
                                     std::span<const double> weights, std::size_t n_entries) const;
};

// What merging did to one head.
struct HeadMerge {
  std::vector<float> values;  // [kept, head_dim]; rows not flagged in `changed` are unspecified
  std::vector<std::uint8_t> changed;       // [kept]: 1 where `values` replaces the stored value
  std::vector<float> keys;                 // as values, or empty: keys stay
  std::vector<std::uint8_t> keys_changed;  // as changed, or empty
  std::vector<float> mass_ratio;           // R of SelKV Eq. 6, [kept], >= 1; of fitted entries > 0
  std::vector<std::uint32_t> n_merged;     // M: evicted tokens that changed the entry, [kept]
  std::size_t n_routed = 0;                // evicted tokens merged into a target (even with gate 0)
  std::size_t n_dropped = 0;               // evicted tokens without a target
  std::size_t n_floored = 0;               // targets whose own mass was raised to the floor for R
  // Evicted tokens that changed an entry, ascending: a residual section leaves them out.
  std::vector<std::uint32_t> absorbed;
};

// Where the kept entries of a prompt stand for what comes after it, if not where they stood.
class Positioner {
 public:
  virtual ~Positioner() = default;
  // New positions of all tokens of the prompt, relative to its first, when one head keeps `kept`:
  // [n_tokens], >= 0, not falling, and rising after each kept token. What comes after the prompt
  // goes on behind the last place of any head of any layer.
  virtual std::vector<std::int32_t> places(std::span<const std::uint32_t> kept,
                                           std::size_t n_tokens) const = 0;
};

class Merger {
 public:
  virtual ~Merger() = default;
  virtual HeadMerge merge(HeadView& head, const HeadPlan& plan) const = 0;
  virtual std::size_t queries_needed(std::size_t n_tokens) const = 0;
  // Positions of the blocks whose attention merge() reads; 0: it does not.
  virtual std::size_t attention_block() const { return 0; }
  // As Scorer::step().
  virtual const StepMerger* step() const { return nullptr; }
};

// What is known of the kept entries of one head, for their biases.
struct HeadEntries {
  std::vector<std::uint32_t> tokens;    // ascending
  std::vector<float> mass_ratio;        // HeadMerge::mass_ratio
  std::vector<std::uint32_t> n_merged;  // HeadMerge::n_merged
};
using LayerEntries = std::vector<HeadEntries>;  // [n_kv_heads]

class Compensator {
 public:
  virtual ~Compensator() = default;
  // False if every bias is 0 whatever the data: the driver then neither asks for biases nor charges
  // for them, so that a neutral compensator is byte for byte no compensator.
  virtual bool uses_bias() const { return true; }
  // Whether compensate() wants all layers at once, when the last one is merged; otherwise it is
  // called for each layer by itself.
  virtual bool needs_all_layers() const { return false; }
  // Logit bias of every kept entry: [layer][head][entry], finite.
  virtual std::vector<std::vector<std::vector<float>>> compensate(
      std::span<const LayerEntries> layers) const = 0;
};

}  // namespace precis
