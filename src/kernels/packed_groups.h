// Groups as the kernels read them: full ones.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/row_type.h"

namespace precis {

// A group of n <= kGroupEntries entries as one of kGroupEntries: out gets key_bytes(type, head_dim,
// kGroupEntries) or value_bytes(...). What is added is 0 (q4 keys: the lows of the group).
void pad_key_group(RowType type, const std::uint8_t* group, std::size_t n, std::size_t head_dim,
                   std::uint8_t* out);
void pad_value_group(RowType type, const std::uint8_t* group, std::size_t n, std::size_t head_dim,
                     std::uint8_t* out);

}  // namespace precis
