// Sums of outer products of rows: covariances, and the metric that a matrix induces.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/attention.h"

namespace precis {

// gram[a, b] += sum over rows r of rows[r, a] * rows[r, b]. Rows of `width` floats start `stride`
// floats apart; gram is [width, width]. Products are summed in f32 over up to 256 rows, and those
// sums in double. Symmetric bit for bit if gram was. The bits depend on the arguments only.
void add_gram(const float* rows, std::size_t n, std::size_t stride, std::size_t width, double* gram,
              Scratch& scratch);

// R of Cholesky's R^T R = gram, [width, width], upper triangular; gram is used up. Where rows were
// fewer than channels, or channels are dead, what the rows above leave of a channel is rounding
// alone, and the row is 0.
void factorise_gram(std::vector<double>& gram, std::size_t width, float* factor);

}  // namespace precis
