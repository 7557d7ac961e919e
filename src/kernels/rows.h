// Bulk operations on rows of f16, as the compression stages need them. Deterministic, thread-safe
// on distinct outputs, never throw.
#pragma once

#include <cstddef>

#include "base/half.h"

namespace precis {

// Element-wise; rounding is to nearest even.
void convert_rows(const Half* from, float* to, std::size_t n);
void convert_rows(const float* from, Half* to, std::size_t n);

// norms[j] = ||rows[j]||_2, rows is [n, width].
void row_norms(const Half* rows, std::size_t n, std::size_t width, float* norms);

// Dot product of two f16 rows, accumulated in f32.
float dot(const Half* a, const Half* b, std::size_t width);

}  // namespace precis
