// Partial states and scratch: a few operations per row, so plain C++ for every instruction set.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/allocation_guard.h"
#include "kernels/attention.h"

namespace precis {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

}  // namespace

float* Scratch::floats(std::size_t n) {
  constexpr std::size_t kAlignment = 64;
  constexpr std::size_t kSlack = kAlignment / sizeof(float);
  // No resize: it would copy contents that nobody needs.
  if (storage_.size() < n + kSlack) {
    const AllocationAllowed growth("scratch grows to the largest call and stays");
    storage_ = std::vector<float>(n + kSlack);
  }
  const auto address = reinterpret_cast<std::uintptr_t>(storage_.data());
  const std::size_t skip = (kAlignment - address % kAlignment) % kAlignment;
  return storage_.data() + skip / sizeof(float);
}

void reset_states(const StateView& state, std::size_t n_rows, std::size_t head_dim) {
  std::fill(state.max, state.max + n_rows, kMinusInfinity);
  std::fill(state.sum, state.sum + n_rows, 0.0f);
  std::fill(state.out, state.out + n_rows * head_dim, 0.0f);
}

void merge_states(const StateView& into, const StateView& from, std::size_t n_rows,
                  std::size_t head_dim) {
  for (std::size_t r = 0; r < n_rows; ++r) {
    if (from.max[r] == kMinusInfinity) continue;
    float* out = into.out + r * head_dim;
    const float* add = from.out + r * head_dim;
    if (into.max[r] == kMinusInfinity) {
      into.max[r] = from.max[r];
      into.sum[r] = from.sum[r];
      std::copy(add, add + head_dim, out);
      continue;
    }
    const float max = std::max(into.max[r], from.max[r]);
    const float keep = std::exp(into.max[r] - max);
    const float gain = std::exp(from.max[r] - max);
    into.max[r] = max;
    into.sum[r] = into.sum[r] * keep + from.sum[r] * gain;
    for (std::size_t c = 0; c < head_dim; ++c) out[c] = out[c] * keep + add[c] * gain;
  }
}

void finish_states(const StateView& state, std::size_t n_tokens, std::size_t group,
                   std::size_t head_dim, std::size_t token_stride, float* output,
                   float* log_sum_exp) {
  for (std::size_t r = 0; r < n_tokens * group; ++r) {
    const float sum = state.sum[r];
    if (log_sum_exp != nullptr)
      log_sum_exp[r] = sum > 0.0f ? state.max[r] + std::log(sum) : kMinusInfinity;
    if (output == nullptr) continue;
    float* to = output + r / group * token_stride + r % group * head_dim;
    const float* out = state.out + r * head_dim;
    const float inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
    for (std::size_t c = 0; c < head_dim; ++c) to[c] = sum > 0.0f ? out[c] * inverse : 0.0f;
  }
}

}  // namespace precis
