// The specification of the attention kernels: plain double-precision loops that are never
// optimised. Every instruction set of attention.h is tested against these. Same arguments as
// attention.h.
#pragma once

#include "kernels/attention.h"

namespace precis::reference {

// output [n_tokens, group, head_dim] packed; log_sum_exp [n_rows] (may be nullptr).
// Attends to all listed segments together in one softmax; visible is [n_segments][n_tokens].
void attention(const QueryView& queries, const EntryView* segments, std::size_t n_segments,
               const LogitRule& rule, const Visible* const* visible, double* output,
               double* log_sum_exp);

// mass [entries.n], set (not added).
void attention_mass(const QueryView& queries, const EntryView& entries, const LogitRule& rule,
                    const Visible* visible, double* mass);

}  // namespace precis::reference
