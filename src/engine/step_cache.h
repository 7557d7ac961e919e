// The cache of one layer of a session that condenses at every step (decode=step): for each KV head
// an array of entries, in no order, that a new token is added to and an evicted one is taken from.
//
// Between two calls of the session no head holds more than its capacity, and bytes() is within the
// budget. While a call is in progress its tokens, at most kChunk at a time, are there in addition:
// they attend to everything, then as many entries are evicted as came, one after another, with what
// was observed up to the last of them. So a token decoded alone is exactly the papers' step, and
// tokens read at once differ from it in that they see each other and what they displace.
//
// Copyable: copies share nothing but the rules. One thread, except where noted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cache/kv_rows.h"
#include "compress/step.h"

namespace precis {

class StepCache {
 public:
  // Tokens that may be on their way in at once: one tile of attention.
  static constexpr std::size_t kChunk = 32;

  // Takes over what the prompt left. carries: for each head. capacity: entries of a head; 0: as
  // many as it has. The next token stands at next_position.
  StepCache(std::shared_ptr<const StepRules> rules, const FrozenLayer& frozen,
            std::span<const StepCarry> carries, std::size_t capacity, std::size_t group,
            std::int32_t next_position);

  const KvShape& shape() const { return shape_; }
  // Entries of a head, those of tokens on their way in included.
  std::size_t size(std::size_t head) const { return heads_[head].positions.size(); }
  std::size_t longest() const;
  EntryView head(std::size_t head) const;
  std::span<const std::int32_t> positions(std::size_t head) const { return heads_[head].positions; }
  std::uint64_t seed(std::size_t head) const { return heads_[head].seed; }
  // The same entries in order of position.
  FrozenLayer freeze() const;
  // Bytes of rows, positions and fields.
  std::size_t bytes() const;

  // n <= kChunk tokens are on their way in; write their rows. Allocates only while heads grow to
  // their capacity, and the first time.
  void begin(std::size_t n);
  Half* key_row(std::size_t head, std::size_t token);
  Half* value_row(std::size_t head, std::size_t token);
  // Takes in the attention of all n tokens in one head, by their order; distinct heads may run on
  // distinct threads. Row (t, g) of `attention` begins at (t * group + g) * stride and holds the
  // softmax over the entries that were there before and tokens 0 to t; it is cut to [0, 1].
  void observe(std::size_t head, float* attention, std::size_t stride);
  // The tokens are in: evicts what is too many. Allocates nothing.
  void commit();
  // In place of commit(): everything is as before begin().
  void drop();

 private:
  struct Head {
    std::vector<Half> keys;    // [entries, head_dim]
    std::vector<Half> values;  // [entries, head_dim]
    std::vector<std::int32_t> positions;
    std::vector<float> fields;         // [n_fields, stride_]
    std::vector<float> fields_before;  // of the entries before begin()
    std::size_t capacity = 0;
    std::uint64_t seed = 0;
  };

  void make_room(std::size_t n);
  StepHead view(std::size_t head, std::size_t n);
  bool is_protected(std::int32_t position) const;
  void add_scores(std::size_t head);
  void evict(std::size_t head, std::size_t slot);
  std::size_t lowest(std::size_t head) const;

  std::shared_ptr<const StepRules> rules_;
  KvShape shape_;
  std::size_t group_ = 1;
  std::size_t stride_ = 0;  // of fields: the most entries of any head
  std::int32_t next_position_ = 0;
  std::size_t n_incoming_ = 0;
  std::size_t n_entered_ = 0;  // tokens since the prompt was condensed
  std::vector<Head> heads_;    // [n_kv_heads]
  std::vector<float> scores_;  // [stride_]
  std::vector<double> sums_;   // [stride_]
};

}  // namespace precis
