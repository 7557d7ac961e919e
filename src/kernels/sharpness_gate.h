// A gate on part of an attention, set by how sharp the rest of it is. Partial softmax states merge
// associatively, so scaling one part's mass is one addition to its maximum at the merge: no row of
// keys or values is read again.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention.h"

namespace precis {

// The factor of the gated part's mass, a function of the sharpness s of the rest, which is the
// largest probability of its own softmax: 1 up to `low`, falling along a line to `least` at `high`.
// 0 < low <= high, 0 <= least <= 1; least 1 is no gate at all.
struct SharpnessGate {
  float low = 1;
  float high = 1;
  float least = 1;

  bool is_off() const { return least == 1.0f; }
  float factor(float sharpness) const;
  friend bool operator==(const SharpnessGate&, const SharpnessGate&) = default;
};

// Largest probability of each row's softmax over what its state has seen: 1 / sum, since sums are
// relative to the largest logit. 0 for a row that saw nothing. sharpness is [n_rows].
void row_sharpness(const StateView& state, std::size_t n_rows, float* sharpness);

// What a gate did to rows. Whole numbers, so that the order of adding does not matter.
struct GateTally {
  std::uint64_t n_rows = 0;
  std::uint64_t n_open = 0;      // factor 1
  std::uint64_t n_closed = 0;    // factor `least`
  std::uint64_t factor_sum = 0;  // in units of 1 / kGateUnits

  double mean_factor() const;  // 1 without rows
  GateTally& operator+=(const GateTally& other);
  friend bool operator==(const GateTally&, const GateTally&) = default;
};
inline constexpr double kGateUnits = 65536;

// Multiplies the mass of every row of `gated` by the gate's factor at the sharpness of the same row
// of `rest`; a factor of 0 leaves an empty row. Does nothing, bit for bit, if the gate is off: all
// rows are open then.
GateTally gate_states(const SharpnessGate& gate, const StateView& rest, const StateView& gated,
                      std::size_t n_rows, std::size_t head_dim);

}  // namespace precis
