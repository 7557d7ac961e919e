#include "kernels/sharpness_gate.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace precis {

float SharpnessGate::factor(float sharpness) const {
  if (sharpness <= low) return 1.0f;
  if (sharpness >= high) return least;
  return 1.0f - (1.0f - least) * ((sharpness - low) / (high - low));
}

void row_sharpness(const StateView& state, std::size_t n_rows, float* sharpness) {
  for (std::size_t r = 0; r < n_rows; ++r)
    sharpness[r] = state.sum[r] > 0.0f ? 1.0f / state.sum[r] : 0.0f;
}

double GateTally::mean_factor() const {
  if (n_rows == 0) return 1;
  return static_cast<double>(factor_sum) / kGateUnits / static_cast<double>(n_rows);
}

GateTally& GateTally::operator+=(const GateTally& other) {
  n_rows += other.n_rows;
  n_open += other.n_open;
  n_closed += other.n_closed;
  factor_sum += other.factor_sum;
  return *this;
}

GateTally gate_states(const SharpnessGate& gate, const StateView& rest, const StateView& gated,
                      std::size_t n_rows, std::size_t head_dim) {
  constexpr auto kOpen = static_cast<std::uint64_t>(kGateUnits);
  if (gate.is_off()) return {n_rows, n_rows, 0, n_rows * kOpen};
  GateTally tally{n_rows, 0, 0, 0};
  for (std::size_t r = 0; r < n_rows; ++r) {
    float sharpness = 0;
    row_sharpness({rest.max + r, rest.sum + r, nullptr}, 1, &sharpness);
    const float factor = gate.factor(sharpness);
    if (factor == 1.0f) ++tally.n_open;
    if (factor == gate.least) ++tally.n_closed;
    tally.factor_sum +=
        static_cast<std::uint64_t>(std::lround(static_cast<double>(factor) * kGateUnits));
    if (factor > 0.0f) {
      gated.max[r] += std::log(factor);  // -inf stays -inf
      continue;
    }
    gated.max[r] = -std::numeric_limits<float>::infinity();
    gated.sum[r] = 0.0f;
    std::fill_n(gated.out + r * head_dim, head_dim, 0.0f);
  }
  return tally;
}

}  // namespace precis
