// Attention that keeps its logits, for methods that look at the attention of every token while text
// is generated: the rows of attention without a second product of queries and keys.
#pragma once

#include <cstddef>

#include "kernels/attention.h"

namespace precis {

// attend(), with the same bits in the state. logits[r * stride + j] becomes z_j of row r for the
// entries that the row's token sees; others are -inf or untouched. stride >= entries.n.
void attend_keeping_logits(const QueryView& queries, const EntryView& entries,
                           const LogitRule& rule, const Visible* visible, const StateView& state,
                           float* logits, std::size_t stride, Scratch& scratch);

// The attention of one row from its n logits, in place: exp(z_j - log_sum_exp), 0 where z_j is
// -inf. log_sum_exp is the row's over all that it sees.
void logits_to_attention(float* logits, std::size_t n, float log_sum_exp);

}  // namespace precis
