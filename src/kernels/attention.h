// Attention over lists of entries, with grouped queries, as mergeable partial states.
//
// One KV head serves a group of query heads. All functions here work on one KV head; callers spread
// heads, tiles of queries and slices of entries over threads. Queries are f32, cached rows are f16,
// all sums are f32. Dispatch to the best instruction set happens inside each call.
//
// Formula, for query row q and visible entry j (papers: SelKV Eq. 6 for the bias; DESIGN.md 1):
//   z_j = cap(scale * q.k_j) + bias_j,   cap(x) = softcap * tanh(x / softcap), or x if softcap is 0
//   out = sum_j exp(z_j) v_j / sum_j exp(z_j)
// A row that sees nothing (or only bias -inf) gives out = 0 and log-sum-exp = -inf, never NaN.
//
// Results depend on the arguments only: never on threads, alignment or neighbouring rows in a call
// (a token decoded alone gets the bits it gets in a prefill tile, given the same list of entries).
// No function allocates except Scratch when it grows. All are noexcept in effect (they never throw,
// except std::bad_alloc from Scratch) and thread-safe on distinct outputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/half.h"

namespace precis {

// Scale and soft-cap of the attention logits of a layer.
struct LogitRule {
  float scale = 1.0f;
  float softcap = 0.0f;  // 0: none
};

// View of the entries of one KV head. Hidden entries must hold finite numbers too.
struct EntryView {
  const Half* keys = nullptr;    // [n, head_dim], rows contiguous
  const Half* values = nullptr;  // [n, head_dim], rows contiguous; nullptr: see attend()
  const float* bias = nullptr;   // [n] added to the logit, -inf hides; nullptr: all 0
  std::size_t n = 0;
};

// View of the queries of one KV head: row (t, j) is query head j of the group at token t.
// Rows are numbered r = t * group + j.
struct QueryView {
  const float* data = nullptr;  // row (t, j) starts at data + t * token_stride + j * head_dim
  std::size_t n_tokens = 0;
  std::size_t group = 1;
  std::size_t head_dim = 0;      // a multiple of 8, at most 512
  std::size_t token_stride = 0;  // in floats, >= group * head_dim

  std::size_t n_rows() const { return n_tokens * group; }
};

// Half-open range of entries that a token may see. Every query head of the token sees the same.
struct Visible {
  std::uint32_t first = 0;
  std::uint32_t last = 0;
};

// Partial softmax of n_rows rows. exp(max) * sum is the mass seen, out the un-normalised
// sum of exp(z - max) * v. An empty state has max = -inf, sum = 0, out = 0.
struct StateView {
  float* max = nullptr;  // [n_rows]
  float* sum = nullptr;  // [n_rows]
  float* out = nullptr;  // [n_rows, head_dim]
};

// Per-thread working memory, reused between calls.
class Scratch {
 public:
  // A float array of at least n elements, 64-byte aligned, contents undefined; valid until the next
  // call on this object.
  float* floats(std::size_t n);

 private:
  std::vector<float> storage_;
};

void reset_states(const StateView& state, std::size_t n_rows, std::size_t head_dim);

// Adds to each row's state the entries visible to its token. visible is [n_tokens], ranges inside
// [0, entries.n]; ranges need not be monotone, but the work follows the union of the ranges of
// neighbouring tokens, so causal and windowed ranges are skipped where nothing is visible.
// One pass over K and V rows serves all query heads of the group. Without values only max and sum
// are added to, with the same bits: for a log-sum-exp alone.
void attend(const QueryView& queries, const EntryView& entries, const LogitRule& rule,
            const Visible* visible, const StateView& state, Scratch& scratch);

// into <- merge(into, from). Associative up to rounding; the order of calls decides the bits.
void merge_states(const StateView& into, const StateView& from, std::size_t n_rows,
                  std::size_t head_dim);

// Writes out / sum (0 where sum is 0) to output row (t, j) at output + t * token_stride + j *
// head_dim, and log(sum) + max to log_sum_exp [n_rows]. Either may be nullptr.
void finish_states(const StateView& state, std::size_t n_tokens, std::size_t group,
                   std::size_t head_dim, std::size_t token_stride, float* output,
                   float* log_sum_exp);

// mass[j] += sum over rows of softmax_j, for a materialised attention of few queries (an
// observation window, SelKV Eq. 1 and SnapKV). mass is [entries.n], log_sum_exp [n_rows] that of
// the same rows over the same entries: attention knew it already, which halves the work.
// Deterministic: rows are added in order of r.
void add_attention_mass(const QueryView& queries, const EntryView& entries, const LogitRule& rule,
                        const Visible* visible, const float* log_sum_exp, float* mass,
                        Scratch& scratch);

// What tokens attend to within their own block of positions, for SelKV Eq. 3, as logarithms (a row
// whose mass lies elsewhere does not underflow): for query token t, which is entry first + t of the
// block,
//   log_attention[t][i] = log(sum over j of exp(cap(scale * q_tj.k_i) - log_sum_exp[t, j]))
// for entries i <= first + t, -inf for later ones. keys [first + n_tokens, head_dim] are those of
// the block, log_sum_exp [n_rows] the rows' over all that they see; log_attention [n_tokens,
// stride], stride >= first + n_tokens.
void log_block_attention(const QueryView& queries, const Half* keys, std::size_t first,
                         const LogitRule& rule, const float* log_sum_exp, std::size_t stride,
                         float* log_attention, Scratch& scratch);

// log_peaks[j] = max(log_peaks[j], log of the largest softmax_j of the rows), for scores that take
// the most that any query gives a token (KVzip, arXiv 2505.23416). Every row sees every entry.
// log_sum_exp [n_rows], finite: of the rows over all that they see, which may be more than these
// entries.
void raise_log_peaks(const QueryView& queries, const EntryView& entries, const LogitRule& rule,
                     const float* log_sum_exp, float* log_peaks, Scratch& scratch);

// Name of the instruction set in use ("AVX2", "AVX3", "NEON", ...).
const char* instruction_set_name();

}  // namespace precis
