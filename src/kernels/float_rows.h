// Rows of f32 in memory as a matrix for products.
#pragma once

#include <algorithm>

#include "kernels/matmul.h"

namespace precis {

// Rows of `depth` floats that start `stride` floats apart.
struct FloatRows {
  const float* data = nullptr;
  std::size_t depth = 0;
  std::size_t stride = 0;
};

// Points to `rows`, which must outlive it.
inline MatrixSource matrix_of(const FloatRows& rows) {
  MatrixSource source;
  source.expand = [](const MatrixSource& from, std::size_t row, std::size_t first, std::size_t n,
                     float* out) {
    const auto& own = *static_cast<const FloatRows*>(from.data);
    std::copy_n(own.data + row * own.stride + first, n, out);
  };
  source.data = &rows;
  source.depth = rows.depth;
  return source;
}

}  // namespace precis
