// Session: one timeline of tokens over a shared engine.
//
// Call order, as a regular expression over the methods:
//   ( prefill+ compress? | condense | restore | resume )? ( extend | fork )*     reset starts over
// Positions are the true ones: after a prompt of n tokens the next position is n, whatever was
// kept; unless the method has a positions stage, which moves the kept entries together and with
// them what comes next. One thread at a time per session; sessions of one engine may run on
// different threads. If a call throws, the session is as it was before the call.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "compress/condenser.h"
#include "engine/engine.h"
#include "engine/session_state.h"

namespace precis {

struct Progress {
  double fraction = 0;     // of the whole call, 0 to 1
  std::size_t n_done = 0;  // layer-tokens worked through
  std::size_t n_total = 0;
};

// How a long call reports and is stopped. Both may be empty. The callback runs on the calling
// thread, first with fraction 0 and last with 1, and may itself raise the flag.
struct CallControl {
  std::function<void(const Progress&)> progress;
  const CancelFlag* cancel = nullptr;
};

struct CondenseRequest {
  Method method;
  Budget budget;
  std::uint64_t seed = 0;
  // How the condensed entries are stored, and later tokens once they have aged: the last 32 to 63
  // stay f16, so with quantised rows the bits depend on how later tokens are cut into calls.
  RowTypes rows;
  bool details = false;  // in the report: CompressionReport::mass_ratios
};

class CacheAttention;
class StepCache;

class Session {
 public:
  explicit Session(std::shared_ptr<const Engine> engine);
  ~Session();
  Session(Session&&) noexcept;

  // Reads the whole prompt into a dense cache. observe: what to keep of each layer for a later
  // compress(): Method::observation() of its method, or {SIZE_MAX}, all queries, for any method
  // that reads nothing else.
  // Called again it goes on: a later compress() sees one prompt, though sums may be cut otherwise
  // than in one call and so differ in their last bits. Forks of a document's session can read
  // different questions so. Throws Error(kInvalidArgument) for an empty prompt, for one longer than
  // the model's context (both numbers), and if what `observe` wants was not kept of the earlier
  // parts.
  void prefill(std::span<const Token> tokens, const Observation& observe = {},
               const CallControl& control = {});
  // Condenses the dense cache that prefill() left. Needs its queries.
  CompressionReport compress(const CondenseRequest& request, const CallControl& control = {});
  // prefill and compress, layer by layer: each layer's dense rows are freed once they are
  // condensed (with a residual stage and a budget that layers share, at the end). Gives the same
  // bits as prefill + compress, in much less memory.
  CompressionReport condense(std::span<const Token> tokens, const CondenseRequest& request,
                             const CallControl& control = {});

  // Goes on from a condensed cache made elsewhere (another session, a file, a benchmark): one layer
  // per model layer, nullptr for sliding layers, which start empty. next_position: of the next
  // token; the entries' own positions and their number are not bound by it. There are no logits
  // before the next extend. Throws Error(kInvalidArgument), naming the layer and both numbers, if
  // the session holds tokens, a layer is missing or too many, a shape is not the model's, or
  // next_position is outside the model's context. rows: how later tokens are stored once they have
  // aged.
  void restore(std::vector<std::shared_ptr<const FrozenLayer>> frozen, std::size_t next_position,
               RowTypes rows = {});

  // What a session holds after compress, condense, restore or resume, and any extends: all that
  // resume() needs to go on with the same bits. Frozen rows are shared, the rest is copied. Throws
  // Error: kInvalidArgument if nothing was condensed yet, kUnsupported with decode=step.
  SessionState state() const;
  // Goes on from such a state of a session of the same model. Throws Error(kInvalidArgument) if the
  // session holds tokens, or with what fault_of() finds.
  void resume(SessionState state);

  // With decode=step the tokens go through the model by at most 32 at a time, and the condensed
  // layers evict what is too many after each of these chunks, so that no more than a chunk is ever
  // held beyond the budget; between calls nothing is. Such a cache depends on how tokens are cut
  // into calls (engine/step_cache.h); a call of more than one chunk holds a second copy of it.
  //
  // Appends tokens and returns the logits of the last n_logits of them, [n_logits, n_vocab]; the
  // view is valid until the next call. On an empty session this is an ordinary token-major prefill.
  std::span<const float> extend(std::span<const Token> tokens, std::size_t n_logits = 1,
                                const CallControl& control = {});
  // Logits after the last token of prefill or condense (computed with the full cache), or of
  // extend.
  std::span<const float> last_logits() const;

  // A new session at the same point. The condensed cache is shared, the tail is copied.
  Session fork() const;
  void reset();

  // Position of the next token.
  std::size_t next_position() const;
  // Bytes of live cache: condensed rows, biases, positions, tails and sliding layers (rows in use).
  std::size_t kv_bytes() const;
  // Bytes that a full f16 cache of as many tokens would take (sliding layers: their window).
  std::size_t kv_bytes_full() const;
  // Wall time of the last prefill/condense without compression, and of compression; reading the
  // prompt a second time, for methods that want that, counts as compression.
  double prefill_ms() const;
  double compress_ms() const;

  const std::shared_ptr<const Engine>& engine() const;

  // The condensed entries of a layer (model index) as they are now, in order of position; a copy
  // with decode=step. nullptr before compression and on sliding layers.
  std::shared_ptr<const FrozenLayer> condensed_layer(std::size_t layer) const;

  // What the gates of residual sections did since the session began, or was forked: of each
  // compressible layer and KV head, the queries of tokens that came after condensing, all query
  // heads of the group. No rows where a head has no residual entries. Not while a call runs.
  std::vector<std::vector<GateTally>> gate_tallies() const;

  // For tests: the condensed layer (model index), nullptr before compression, on sliding layers
  // and with decode=step.
  const FrozenLayer* frozen_layer(std::size_t layer) const;
  // For tests: dense rows and captured queries after prefill(), by model layer.
  const TailRows& tail(std::size_t layer) const;
  // For tests: the layer's cache with decode=step, else nullptr.
  const StepCache* step_cache(std::size_t layer) const;
  const ObservedQueries& observed(std::size_t layer) const;

 private:
  // One token that goes through a graph shared with other sessions. begin_token throws as extend
  // does and makes room for the logits; then the graph runs over token_attention() and writes
  // token_logits() [n_vocab]; then commit_token, or drop_token to be as before begin_token.
  friend class BatchDecoder;
  void begin_token();
  CacheAttention& token_attention();
  float* token_logits();
  void commit_token();
  void drop_token() noexcept;

  struct Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace precis
