// The best entries of a layer where its heads share the budget, as Ada-KV has it.
#pragma once

#include <cstddef>
#include <vector>

#include "methods/kept_tokens.h"

namespace precis {

// Open tokens of every head, ascending: each head's best `floor` ones, and the best of all other
// entries of the layer; on average open_entries(table). Ties go to the earlier token, then to the
// earlier head. REQUIRES: floor <= open_entries(table).
std::vector<Tokens> pooled_tokens(const LayerTable& table, std::size_t floor);

}  // namespace precis
