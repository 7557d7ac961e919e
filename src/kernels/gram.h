// Sums of outer products of rows: covariances, and the metric that a matrix induces.
#pragma once

#include <cstddef>

#include "kernels/attention.h"

namespace precis {

// gram[a, b] += sum over rows r of rows[r, a] * rows[r, b]. Rows of `width` floats start `stride`
// floats apart; gram is [width, width]. Products are summed in f32 over up to 256 rows, and those
// sums in double. Symmetric bit for bit if gram was. The bits depend on the arguments only.
void add_gram(const float* rows, std::size_t n, std::size_t stride, std::size_t width, double* gram,
              Scratch& scratch);

}  // namespace precis
