// Weights as numbers, for what is computed from them outside of the graphs. Not for other folders.
#pragma once

#include <ggml.h>

#include <cstddef>

namespace precis {

// Elements [first, first + n) of each row of a matrix in plain memory, as f32: [rows of it, n].
// Blocks that lie across an end of the range are expanded whole, so any range will do.
void expand_columns(const ggml_tensor& matrix, std::size_t first, std::size_t n, float* out);

}  // namespace precis
