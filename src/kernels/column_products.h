// Products of quantised weight rows with a few quantised columns, for decoding several texts at
// once: a row is read and unpacked once for all columns. ggml's kernels gain 1.0 to 1.3 times from
// 8 columns (they unpack per column); these gain about 2 on AVX2.
//
// Formats are GGUF's: q8_0 and q5_0, blocks of 32 weights with an f16 scale, and q4_K and q6_K,
// blocks of 256 with a scale for each 32 or 16. Columns are quantised as ggml does for the format:
// 32 values with an f16 scale, or 256 with an f32 scale. Sums are in the order that ggml's x86
// kernels for one column have, so that the bits are theirs: integers within a block, f32 over
// blocks in 8 lanes; for q4_K in one lane, as ggml repacks such rows. A column's bits do not depend
// on the other columns. For processors with AVX2, FMA and F16C; see column_products_available().
#pragma once

#include <cstddef>
#include <cstdint>

namespace precis {

enum class ColumnFormat { kQ5_0, kQ8_0, kQ4_K, kQ6_K };

constexpr std::size_t kColumnGroup = 8;  // columns that share one pass over a row

bool column_products_available();

// Values of a column, and weights of a row, that share a scale: 32 or 256. Formats with the same
// number share quantised columns.
std::size_t column_block(ColumnFormat format);

// Bytes for n quantised columns of `width` values, a multiple of `block`.
std::size_t quantised_columns_bytes(std::size_t block, std::size_t width, std::size_t n_columns);

// Quantises blocks [first_block, last_block) of all columns; x is [n_columns, width], `columns`
// aligned to 32. Distinct ranges may run on distinct threads.
void quantise_columns(std::size_t block, const float* x, std::size_t width, std::size_t n_columns,
                      std::size_t first_block, std::size_t last_block, std::byte* columns);

// out[c * out_stride + r] = row r . column c, for rows [first_row, last_row). `rows` is [n_rows,
// width] in the format, rows contiguous; columns are quantised in the format's blocks.
void multiply_columns(ColumnFormat format, const std::byte* rows, std::size_t width,
                      std::size_t first_row, std::size_t last_row, const std::byte* columns,
                      std::size_t n_columns, float* out, std::size_t out_stride);

}  // namespace precis
