// Packing rows into the formats of row_type.h and attention over packed rows.
//
// Same formula, same guarantees as attention.h. A row's result does not depend on the other rows of
// the call or on where a list was cut into calls, as long as cuts are multiples of 64 entries.
//
// Quantised rows are multiplied as the whole numbers they are stored as, so the other factor is
// rounded to whole numbers too, 32 of them with one step, a fraction of the largest:
//   keys of q8_0    queries, per row and block of channels, 1/4095
//   keys of q4      queries times the channels' scales, per row, block and group, 1/127
//   values of q8_0  probabilities times the entries' scales, per row, block and group, 1/4095
//   values of q4    the same, 1/127
// For q4 this concerns what goes with u - 7.5; what goes with low + 7.5 scale is not rounded, nor
// is the sum of the softmax. A step of 1/most is at most sqrt(32) / most of the root mean square of
// the 32, so where roundings are independent they add at most sqrt(32) * 127 / 4095 = 0.18 (q8_0)
// or sqrt(32) * 7.5 / 127 = 0.33 (q4) of the error that rounding the rows made, and less where the
// 32 are alike: 0.05 and 0.11 in outputs over normally distributed rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/row_type.h"

namespace precis {

// View of the packed entries of one KV head.
struct PackedView {
  const std::uint8_t* keys = nullptr;    // key_bytes(types.keys, head_dim, n)
  const std::uint8_t* values = nullptr;  // value_bytes(types.values, head_dim, n)
  const float* bias = nullptr;           // [n] added to the logit, -inf hides; nullptr: all 0
  std::size_t n = 0;
  RowTypes types;
};

// Packs one group: rows is [n, head_dim], 1 <= n <= kGroupEntries; out gets key_bytes(type,
// head_dim, n) or value_bytes(...). Rounds to nearest. Finite input stays finite: what exceeds f16
// becomes +-65504 (q4: a range wider than 65504 is cut there).
void pack_keys(RowType type, const float* rows, std::size_t n, std::size_t head_dim,
               std::uint8_t* out);
void pack_values(RowType type, const float* rows, std::size_t n, std::size_t head_dim,
                 std::uint8_t* out);
// What the packed numbers mean: rows is [n, head_dim].
void unpack_keys(RowType type, const std::uint8_t* group, std::size_t n, std::size_t head_dim,
                 float* rows);
void unpack_values(RowType type, const std::uint8_t* group, std::size_t n, std::size_t head_dim,
                   float* rows);

// As attend() in attention.h. fits(types, head_dim) is required.
void attend(const QueryView& queries, const PackedView& entries, const LogitRule& rule,
            const Visible* visible, const StateView& state, Scratch& scratch);

}  // namespace precis
