// Expands quantised weights to f32. The block formats are ggml's; only those whose own expansion in
// ggml is portable code that would take a large part of a product of few tokens (0.8 to 1.6 ns a
// weight, here 0.15 to 0.3). Results equal ggml's bit for bit.
#pragma once

#include <cstddef>

namespace precis {

// A block of the first five holds 32 weights: scale f16 [, minimum f16] [, fifth bits u32], then 16
// bytes (low nibbles are weights 0..15, high ones 16..31) or 32 signed bytes. A block of q6_K holds
// 256: low nibbles, high pairs of bits, 16 scales, scale f16.
enum class BlockFormat { kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ6_K };

// n is a multiple of the block's size. No alignment is needed.
void expand_blocks(BlockFormat format, const void* blocks, std::size_t n, float* out);

}  // namespace precis
