// How far one distribution of next tokens is from another. Computed in double from f32 logits.
#pragma once

#include <cstddef>
#include <span>

namespace precis {

struct Divergence {
  double kl = 0;          // KL(reference || other) in nats
  bool same_top = false;  // both prefer the same token
};

// Both spans are logits [n_vocab] of one position.
Divergence compare_logits(std::span<const float> reference, std::span<const float> other);

// log of the softmax probability of one token.
double log_probability(std::span<const float> logits, std::size_t token);

}  // namespace precis
