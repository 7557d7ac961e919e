// Whether bytes that came from outside can be rows: what the kernels take for granted.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/half.h"
#include "kernels/row_type.h"

namespace precis {

bool all_finite(const Half* numbers, std::size_t n);
bool all_finite(const float* numbers, std::size_t n);

// Whether packing may have made these keys, or values, of a list of n entries: numbers and scales
// are finite, scales not negative, codes of q8_0 not below -127. keys has key_bytes(type, head_dim,
// n) bytes, values value_bytes(...), both aligned for f16.
bool are_sound_keys(RowType type, const std::uint8_t* keys, std::size_t head_dim, std::size_t n);
bool are_sound_values(RowType type, const std::uint8_t* values, std::size_t head_dim,
                      std::size_t n);

}  // namespace precis
