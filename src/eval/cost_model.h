// From which prompt length on condensing pays, by a model of three costs whose constants are fitted
// to measurements of one run:
//   one decode step    step(bytes)   = s0 + s1 * bytes of live cache
//   condensing         compress(n)   = c0 + c1 * n
//   reading a prompt   the same with and without condensing, so it cancels
// A request with n prompt tokens and a answer tokens is faster condensed when
//   c0 + c1 * n < a * s1 * n * (bytes a token in full - bytes a token kept).
// Bytes kept are taken as a fixed share, as a budget in percent is.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

namespace precis {

struct CostSample {
  double x = 0;        // bytes of live cache, or prompt tokens
  double seconds = 0;  // of a step, or of condensing
};

struct BreakEvenInput {
  std::span<const CostSample> steps;     // at two or more sizes of the cache
  std::span<const CostSample> compress;  // at two or more prompt lengths
  double full_bytes_per_token = 0;
  double kept_bytes_per_token = 0;
  std::size_t n_answer = 0;
};

enum class BreakEven { kUnknown, kNever, kFrom };

struct BreakEvenResult {
  BreakEven kind = BreakEven::kUnknown;  // kUnknown: too few sizes were measured
  std::size_t n_prompt = 0;              // kFrom: smallest number of prompt tokens, at least 1
};

BreakEvenResult break_even_prompt(const BreakEvenInput& input);

}  // namespace precis
