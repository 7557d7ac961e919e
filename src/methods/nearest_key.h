// How alike keys are, and the kept token whose key is most like an evicted one's.
#pragma once

#include <cstdint>
#include <vector>

#include "compress/stage.h"

namespace precis {

// Cosine of two rows of f16, in [-1, 1]; 0 if one is zero.
float row_cosine(const Half* a, const Half* b, std::size_t width);
// The same of two tokens' keys, as stored, after RoPE.
float key_cosine(const HeadView& head, std::size_t a, std::size_t b);

struct NearestKeys {
  static constexpr std::uint32_t kNone = 0xffffffffu;
  std::vector<std::uint32_t> tokens;  // evicted tokens, ascending
  std::vector<std::uint32_t> slots;   // index into HeadPlan::kept, or kNone without any target
  std::vector<float> cosines;         // of the two keys; 0 if one is zero
};

// Targets are plan.targets but for the first n_sinks tokens of the prompt; the earlier one of
// equals. Keys are compared as stored, after RoPE. Costs evicted * kept * head_dim multiply-adds,
// quadratic in the prompt.
NearestKeys nearest_keys(const HeadView& head, const HeadPlan& plan, std::size_t n_sinks);

}  // namespace precis
