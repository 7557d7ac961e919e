// Products of many rows with a matrix that is stored in any format, in f32.
//
// The matrix is expanded piece by piece into the caller's scratch (1 KiB a row of the call and some
// 30 KiB, whatever the size of the matrix), so that no rounding below f32 happens: activations are
// not quantised. Formula: y[t, r] = sum over k of x[t, k] * w[r, k].
//
// Each sum runs over k in ascending order with fused multiply-adds (where the processor has them).
// Hence the bits of y[t, r] do not depend on the rows beside it in a call, on how a caller divides
// tokens and rows over threads, or on the width of the vectors.
#pragma once

#include <cstddef>

#include "kernels/attention.h"

namespace precis {

// How far a row is expanded at a time: kMatmulStep elements from a multiple of it on, or what is
// left of the row.
constexpr std::size_t kMatmulStep = 256;

// A matrix [n_rows, depth] whose elements are made on demand.
struct MatrixSource {
  // Writes w[row, first .. first + n) to out. first is a multiple of kMatmulStep. Thread-safe.
  void (*expand)(const MatrixSource& source, std::size_t row, std::size_t first, std::size_t n,
                 float* out) = nullptr;
  const void* data = nullptr;
  const void* format = nullptr;  // for expand
  std::size_t depth = 0;
};

// y[t, r - first_row] for r in [first_row, last_row), t in [0, n_tokens). x rows are `depth` floats
// apart, y rows y_stride. Best with a multiple of matmul_panel_rows() rows and at least 64 of them:
// x is read once per call. No alignment is needed. Never throws except std::bad_alloc from Scratch.
void multiply_transposed(const float* x, std::size_t n_tokens, const MatrixSource& w,
                         std::size_t first_row, std::size_t last_row, float* y,
                         std::size_t y_stride, Scratch& scratch);

// Rows of the matrix that the inner loop takes at once on this processor.
std::size_t matmul_panel_rows();

}  // namespace precis
