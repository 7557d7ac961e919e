// The attention that a chunk of a prompt gets from its repetition, for KVzip (arXiv 2505.23416).
// See engine/repeat_pass.h for how a prompt is repeated.
#pragma once

#include <cstddef>

#include "kernels/attention.h"

namespace precis {

// One KV head. The repetition's tokens follow the prompt's.
struct Repetition {
  const Half* keys = nullptr;      // [n_prompt + n_tokens, head_dim]
  const float* queries = nullptr;  // of the repetition's tokens, [group, n_tokens, head_dim]
  std::size_t n_prompt = 0;
  std::size_t n_tokens = 0;
  std::size_t first = 0;  // the chunk, tokens [first, last) of the prompt
  std::size_t last = 0;
  std::size_t group = 1;
  std::size_t head_dim = 0;
  LogitRule rule;
};

// log_peaks[j] = max(log_peaks[j], log of the most attention) that queries [begin, begin + n) of
// the repetition give token first + j, of any query head; log_peaks is [last - first]. Attention is
// taken among the first four tokens of the prompt, the chunk, and the repetition up to the query,
// as KVzip does, and not among the whole prompt.
void raise_repetition_peaks(const Repetition& repetition, std::size_t begin, std::size_t n,
                            float* log_peaks, Scratch& scratch);

}  // namespace precis
