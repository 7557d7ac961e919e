// Draws the next token from logits: libllama's sampler chain.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "model/tokenizer.h"

namespace precis {

struct SamplerOptions {
  float temperature = 0.0f;  // 0: greedy
  int top_k = 40;            // 0: off
  float top_p = 0.95f;       // 1: off
  float min_p = 0.05f;       // 0: off
  std::uint32_t seed = 0;
};

class Sampler {
 public:
  explicit Sampler(const SamplerOptions& options);
  ~Sampler();
  // Draws from logits [n_vocab] and remembers the choice. Throws Error(kInternal) if no logit is
  // finite.
  Token sample(std::span<const float> logits);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace precis
