// What a method does at every token after the prompt: the seam of decode=step.
//
// The papers of some methods do not condense once, they keep a cache of fixed size while text is
// generated: a token enters, its query's attention is added to what is remembered of every entry,
// and one entry of each KV head is evicted, or merged into others. A scorer and a merger of such a
// method also are a StepScorer and a StepMerger. They stay stateless: what they remember of an
// entry are a few numbers, its fields, which are stored beside the entry, count as cache and move
// with it. All methods are const, noexcept in effect, and allocate nothing but in carry().
//
// Order of calls for a head: carry() when the prompt is condensed; then for every token enter() and
// observe(), in order of position; then, once for each entry too many, importance(), merge() and
// the eviction. Sums run in the order of the tokens: threads do not change a bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "compress/stage.h"

namespace precis {

// Numbers remembered of the entries of a head, [n_fields, stride]; 0 before carry() or enter().
struct StepFields {
  float* data = nullptr;
  std::size_t stride = 0;
  float* row(std::size_t field) const { return data + field * stride; }
  StepFields from(std::size_t field) const { return {row(field), stride}; }
};

// The entries of one KV head, by slot and in no order.
struct StepHead {
  std::size_t n = 0;  // entries, those of tokens on their way in included
  std::size_t head_dim = 0;
  std::size_t group = 1;
  const Half* keys = nullptr;               // [n, head_dim]
  Half* values = nullptr;                   // [n, head_dim]; for merge() only to write
  const std::int32_t* positions = nullptr;  // [n], all different
  // Softmax of the token's query over the n entries, [group, attention_stride], in [0, 1]; in
  // observe() only.
  const float* attention = nullptr;
  std::size_t attention_stride = 0;
  std::uint64_t seed = 0;    // HeadView::seed
  std::size_t n_before = 0;  // tokens that entered before this one since the prompt was condensed
  StepFields fields;         // the stage's own
};

class StepScorer {
 public:
  virtual ~StepScorer() = default;
  virtual std::size_t n_fields() const = 0;
  // What the prompt leaves behind of its kept tokens, [n_fields, kept.size()]. head.scores are the
  // stage's scores.
  virtual void carry(HeadView& head, std::span<const std::uint32_t> kept,
                     const StepFields& fields) const = 0;
  // A token entered at `slot`, its fields are 0.
  virtual void enter(const StepHead& head, std::size_t slot) const {
    (void)head;
    (void)slot;
  }
  // Takes in head.attention.
  virtual void observe(const StepHead& head) const = 0;
  // scores [n]; of the entries that are not protected the one with the lowest is evicted, the later
  // of equals.
  virtual void importance(const StepHead& head, std::span<float> scores) const = 0;
};

class StepMerger {
 public:
  virtual ~StepMerger() = default;
  // Whether what is evicted of the prompt is merged as well, all at once; otherwise it is dropped.
  virtual bool merges_prompt() const { return true; }
  virtual std::size_t n_fields() const = 0;
  virtual void carry(HeadView& head, std::span<const std::uint32_t> kept,
                     const StepFields& fields) const = 0;
  virtual void observe(const StepHead& head) const = 0;
  // The entry at `slot` is about to be evicted; what should outlive it is written to the others.
  virtual void merge(const StepHead& head, std::size_t slot) const = 0;
};

// A field that sums attention: adds that of all query heads of the group, in their order.
void add_attention(const StepHead& head, float* sums);

// The slot with the smallest position behind `position`; head.n if there is none.
std::size_t next_slot(const StepHead& head, std::int32_t position);

// What a method does at every token; the stages are shared and outlive it through their owner.
struct StepRules {
  std::shared_ptr<const Scorer> scorer_owner;
  std::shared_ptr<const Merger> merger_owner;
  const StepScorer* scorer = nullptr;
  const StepMerger* merger = nullptr;  // may be nullptr
  Protection protection;
  bool same_for_all_heads = false;  // the heads of a layer evict the same, by the sum of scores

  std::size_t n_fields() const {
    return scorer->n_fields() + (merger == nullptr ? 0 : merger->n_fields());
  }
};

// What the prompt leaves behind in one head, for the tokens that were kept when it was scored.
struct StepCarry {
  std::vector<std::uint32_t> tokens;  // ascending
  std::vector<float> fields;          // [n_fields, tokens]
  std::uint64_t seed = 0;
};

StepCarry carry_step(const StepRules& rules, HeadView& head, const HeadPlan& plan);
// Leaves of it the given tokens, which are among its own, ascending.
void keep_tokens(StepCarry& carry, std::span<const std::uint32_t> tokens);

}  // namespace precis
