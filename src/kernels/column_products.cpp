#include "kernels/column_products.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"

// Not in Highway like the other kernels: version 1.0.3 has no product of unsigned with signed
// bytes.
#if defined(__x86_64__)
#include <immintrin.h>
#define PRECIS_AVX2 __attribute__((target("avx2,fma,f16c")))
#endif
// g++ 12 unrolls the loops over columns too late to keep the sums in registers, and stores all of
// them for every block: 10 % of the time of 8 columns.
#if defined(__GNUC__) && !defined(__clang__)
#define PRECIS_UNROLL _Pragma("GCC unroll 8")
#else
#define PRECIS_UNROLL
#endif

namespace precis {
namespace {

constexpr std::size_t kSmallBlock = 32;
constexpr std::size_t kLargeBlock = 256;
constexpr std::size_t kSumsPerBlock = 16;  // of 16 values each, for large blocks only

// A group of up to 8 columns. Values of small blocks: i16 [n_blocks, n_columns, 32], the even ones
// of a block before the odd ones; of large blocks: i8 [width / 32, n_columns, 32]. Then scales
// [n_blocks, 8], then for large blocks the sums of 16 values, i16 [n_blocks, n_columns, 16].
struct Group {
  std::size_t n_columns = 0;
  std::size_t values_at = 0;
  std::size_t scales_at = 0;
  std::size_t sums_at = 0;
};

std::size_t value_bytes(std::size_t block, std::size_t width, std::size_t n_columns) {
  return width * n_columns * (block == kSmallBlock ? sizeof(std::int16_t) : sizeof(std::int8_t));
}

std::size_t sums_bytes(std::size_t block, std::size_t width, std::size_t n_columns) {
  return block == kSmallBlock ? 0
                              : width / block * n_columns * kSumsPerBlock * sizeof(std::int16_t);
}

[[maybe_unused]] Group group_at(std::size_t block, std::size_t first_column, std::size_t width,
                                std::size_t n_columns) {
  const std::size_t scales = width / block * kColumnGroup * sizeof(float);
  Group group;
  group.n_columns = std::min(kColumnGroup, n_columns - first_column);
  group.values_at = value_bytes(block, width, first_column) + first_column / kColumnGroup * scales +
                    sums_bytes(block, width, first_column);
  group.scales_at = group.values_at + value_bytes(block, width, group.n_columns);
  group.sums_at = group.scales_at + scales;
  return group;
}

}  // namespace

std::size_t column_block(ColumnFormat format) {
  return format == ColumnFormat::kQ4_K || format == ColumnFormat::kQ6_K ? kLargeBlock : kSmallBlock;
}

std::size_t quantised_columns_bytes(std::size_t block, std::size_t width, std::size_t n_columns) {
  const std::size_t n_groups = (n_columns + kColumnGroup - 1) / kColumnGroup;
  return value_bytes(block, width, n_columns) +
         n_groups * (width / block) * kColumnGroup * sizeof(float) +
         sums_bytes(block, width, n_columns);
}

#if defined(__x86_64__)

bool column_products_available() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}

namespace {

struct BlockQ8 {
  std::uint16_t scale;
  std::int8_t weights[32];
};
struct BlockQ5 {
  std::uint16_t scale;
  std::uint8_t high[4];  // bit i: fifth bit of weight i
  std::uint8_t low[16];  // low nibble: weight i, high nibble: weight 16 + i
};
struct BlockQ4 {
  std::uint16_t scale;    // of the scales
  std::uint16_t minimum;  // scale of the minima
  std::uint8_t scales[12];
  std::uint8_t low[128];  // 32 bytes hold 64 weights: low nibbles before high ones
};
struct BlockQ6 {
  std::uint8_t low[128];
  std::uint8_t high[64];
  std::int8_t scales[16];  // of 16 weights each
  std::uint16_t scale;
};
static_assert(sizeof(BlockQ8) == 34 && sizeof(BlockQ5) == 22 && sizeof(BlockQ4) == 144 &&
              sizeof(BlockQ6) == 210);

PRECIS_AVX2 inline __m256i load_bytes(const void* at) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(at));
}

PRECIS_AVX2 inline __m256i unpack(const BlockQ8& block) { return load_bytes(block.weights); }

PRECIS_AVX2 inline __m256i unpack(const BlockQ5& block) {
  std::uint32_t high = 0;
  std::memcpy(&high, block.high, sizeof high);
  const __m256i spread =
      _mm256_set_epi64x(0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0);
  const __m256i bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201ULL));
  const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(high)), spread);
  // 0xF0 where the fifth bit is not set: the weight is then (nibble - 16).
  const __m256i is_set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
  const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block.low));
  const __m256i nibbles = _mm256_and_si256(
      _mm256_set1_epi8(15),
      _mm256_inserti128_si256(_mm256_castsi128_si256(low), _mm_srli_epi16(low, 4), 1));
  return _mm256_or_si256(nibbles,
                         _mm256_andnot_si256(is_set, _mm256_set1_epi8(static_cast<char>(0xF0))));
}

PRECIS_AVX2 inline float sum_of_lanes(__m256 x) {
  __m128 sum = _mm_add_ps(_mm256_extractf128_ps(x, 1), _mm256_castps256_ps128(x));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

// One row by N columns. 8 columns take 8 of the 16 registers for sums; two rows by 4 columns and
// the like were 10 to 25 % slower. Products of 16-bit numbers need no pass for the signs: with
// bytes 8 columns took 5 to 7 % longer, although their columns have half the size.
template <class Block, std::size_t N>
PRECIS_AVX2 void multiply_row(const Block* row, std::size_t n_blocks, const std::int16_t* values,
                              const float* scales, float* out, std::size_t out_stride) {
  __m256 sums[N];
  PRECIS_UNROLL
  for (std::size_t c = 0; c < N; ++c) sums[c] = _mm256_setzero_ps();
  for (std::size_t b = 0; b < n_blocks; ++b) {
    const __m256i weights = unpack(row[b]);
    const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(weights, 8), 8);
    const __m256i odd = _mm256_srai_epi16(weights, 8);
    // Products of two f16 numbers are exact in f32.
    alignas(32) float scale[kColumnGroup];
    _mm256_store_ps(scale, _mm256_mul_ps(_mm256_set1_ps(_cvtsh_ss(row[b].scale)),
                                         _mm256_loadu_ps(scales + b * kColumnGroup)));
    PRECIS_UNROLL
    for (std::size_t c = 0; c < N; ++c) {
      const std::int16_t* column = values + (b * N + c) * kSmallBlock;
      const __m256i fours = _mm256_add_epi32(_mm256_madd_epi16(even, load_bytes(column)),
                                             _mm256_madd_epi16(odd, load_bytes(column + 16)));
      sums[c] = _mm256_fmadd_ps(_mm256_broadcast_ss(scale + c), _mm256_cvtepi32_ps(fours), sums[c]);
    }
  }
  PRECIS_UNROLL
  for (std::size_t c = 0; c < N; ++c) out[c * out_stride] = sum_of_lanes(sums[c]);
}

// 32 weights of a q6_K block, plus 32, in order; part in [0, 8).
PRECIS_AVX2 inline __m256i unpack_part(const BlockQ6& block, std::size_t part) {
  const std::size_t half = part / 4;     // 128 weights share 64 bytes of low and 32 of high bits
  const std::size_t quarter = part % 4;  // 2 bits of each high byte
  __m256i low = load_bytes(block.low + 64 * half + 32 * (quarter % 2));
  if (quarter >= 2) low = _mm256_srli_epi16(low, 4);
  __m256i high = load_bytes(block.high + 32 * half);
  high =
      _mm256_and_si256(_mm256_srli_epi16(high, static_cast<int>(2 * quarter)), _mm256_set1_epi8(3));
  return _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi8(15)), _mm256_slli_epi16(high, 4));
}

template <std::size_t N>
PRECIS_AVX2 void multiply_row_q6(const BlockQ6* row, std::size_t n_blocks,
                                 const std::int8_t* values, const float* scales,
                                 const std::int16_t* block_sums, float* out,
                                 std::size_t out_stride) {
  constexpr std::size_t kParts = kLargeBlock / kSmallBlock;
  __m256 sums[N];
  PRECIS_UNROLL
  for (std::size_t c = 0; c < N; ++c) sums[c] = _mm256_setzero_ps();
  for (std::size_t b = 0; b < n_blocks; ++b) {
    const __m128i scale_bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row[b].scales));
    __m256i wholes[N];
    PRECIS_UNROLL
    for (std::size_t c = 0; c < N; ++c) wholes[c] = _mm256_setzero_si256();
    // Two scales of a part: the first 8 of 16 lanes, the others.
    __m128i spread = _mm_set_epi64x(0x0101010101010101, 0);
    for (std::size_t part = 0; part < kParts; ++part) {
      const __m256i weights = unpack_part(row[b], part);
      const __m256i scale = _mm256_cvtepi8_epi16(_mm_shuffle_epi8(scale_bytes, spread));
      spread = _mm_add_epi8(spread, _mm_set1_epi8(2));
      PRECIS_UNROLL
      for (std::size_t c = 0; c < N; ++c) {
        const __m256i column = load_bytes(values + ((b * kParts + part) * N + c) * kSmallBlock);
        wholes[c] = _mm256_add_epi32(
            wholes[c], _mm256_madd_epi16(scale, _mm256_maddubs_epi16(weights, column)));
      }
    }
    // The weights were 32 too large.
    const __m256i scales_16 = _mm256_cvtepi8_epi16(scale_bytes);
    const float row_scale = _cvtsh_ss(row[b].scale);
    PRECIS_UNROLL
    for (std::size_t c = 0; c < N; ++c) {
      const __m256i of_column = load_bytes(block_sums + (b * N + c) * kSumsPerBlock);
      const __m256i excess = _mm256_slli_epi32(_mm256_madd_epi16(of_column, scales_16), 5);
      sums[c] = _mm256_fmadd_ps(_mm256_set1_ps(scales[b * kColumnGroup + c] * row_scale),
                                _mm256_cvtepi32_ps(_mm256_sub_epi32(wholes[c], excess)), sums[c]);
    }
  }
  PRECIS_UNROLL
  for (std::size_t c = 0; c < N; ++c) out[c * out_stride] = sum_of_lanes(sums[c]);
}

// Scales, then minima, of the 8 parts of a q4_K block: 6 bits each in 12 bytes. The first four of
// both are the low bits of bytes 0..7; bytes 8..11 hold the low nibbles of the others, whose upper
// pairs of bits are those of bytes 0..7.
void unpack_scales(const BlockQ4& block, std::uint8_t* scales, std::uint8_t* minima) {
  const std::uint8_t* s = block.scales;
  for (std::size_t i = 0; i < 4; ++i) {
    scales[i] = s[i] & 63;
    minima[i] = s[i + 4] & 63;
    scales[i + 4] = static_cast<std::uint8_t>((s[i + 8] & 15) | s[i] >> 6 << 4);
    minima[i + 4] = static_cast<std::uint8_t>(s[i + 8] >> 4 | s[i + 4] >> 6 << 4);
  }
}

// Sum of the lanes of each of 8 vectors.
PRECIS_AVX2 inline __m256i sums_of_lanes(const __m256i* v) {
  const __m256i low =
      _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
  const __m256i high =
      _mm256_hadd_epi32(_mm256_hadd_epi32(v[4], v[5]), _mm256_hadd_epi32(v[6], v[7]));
  return _mm256_add_epi32(_mm256_permute2x128_si256(low, high, 0x20),
                          _mm256_permute2x128_si256(low, high, 0x31));
}

// ggml's product of repacked q4_K has a row in each lane, so a block's sum is one integer and a row
// has one chain of f32 sums for the scales and one for the minima.
template <std::size_t N>
PRECIS_AVX2 void multiply_row_q4(const BlockQ4* row, std::size_t n_blocks,
                                 const std::int8_t* values, const float* scales,
                                 const std::int16_t* block_sums, float* out,
                                 std::size_t out_stride) {
  constexpr std::size_t kParts = kLargeBlock / kSmallBlock;
  __m256 sums = _mm256_setzero_ps();
  __m256 minima_sums = _mm256_setzero_ps();
  for (std::size_t b = 0; b < n_blocks; ++b) {
    std::uint8_t part_scales[kParts];
    alignas(16) std::uint8_t part_minima[2 * kParts] = {};
    unpack_scales(row[b], part_scales, part_minima);
    __m256i wholes[kColumnGroup];
    PRECIS_UNROLL
    for (std::size_t c = 0; c < kColumnGroup; ++c) wholes[c] = _mm256_setzero_si256();
    for (std::size_t part = 0; part < kParts; ++part) {
      __m256i weights = load_bytes(row[b].low + part / 2 * kSmallBlock);
      if (part % 2 != 0) weights = _mm256_srli_epi16(weights, 4);
      weights = _mm256_and_si256(weights, _mm256_set1_epi8(15));
      const __m256i scale = _mm256_set1_epi16(part_scales[part]);
      PRECIS_UNROLL
      for (std::size_t c = 0; c < N; ++c) {
        const __m256i column = load_bytes(values + ((b * kParts + part) * N + c) * kSmallBlock);
        wholes[c] = _mm256_add_epi32(
            wholes[c], _mm256_madd_epi16(scale, _mm256_maddubs_epi16(weights, column)));
      }
    }
    const __m256 column_scales = _mm256_loadu_ps(scales + b * kColumnGroup);
    sums = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums_of_lanes(wholes)),
                           _mm256_mul_ps(_mm256_set1_ps(_cvtsh_ss(row[b].scale)), column_scales),
                           sums);
    // A minimum for both sums of its part.
    const __m128i bytes = _mm_load_si128(reinterpret_cast<const __m128i*>(part_minima));
    const __m256i minima = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(bytes, bytes));
    PRECIS_UNROLL
    for (std::size_t c = 0; c < N; ++c)
      wholes[c] = _mm256_madd_epi16(minima, load_bytes(block_sums + (b * N + c) * kSumsPerBlock));
    minima_sums = _mm256_fmadd_ps(
        _mm256_cvtepi32_ps(sums_of_lanes(wholes)),
        _mm256_mul_ps(_mm256_set1_ps(_cvtsh_ss(row[b].minimum)), column_scales), minima_sums);
  }
  alignas(32) float results[kColumnGroup];
  _mm256_store_ps(results, _mm256_sub_ps(sums, minima_sums));
  for (std::size_t c = 0; c < N; ++c) out[c * out_stride] = results[c];
}

// Calls multiply(row, group, out) for every row and group of columns. 16 rows are some 15 KiB
// (q5_0, 896 wide): they stay in the first cache from one group of columns to the next.
template <class Multiply>
void for_rows(std::size_t block, std::size_t width, std::size_t first, std::size_t last,
              std::size_t n_columns, float* out, std::size_t out_stride, const Multiply& multiply) {
  constexpr std::size_t kTileRows = 16;
  for (std::size_t r0 = first; r0 < last; r0 += kTileRows) {
    for (std::size_t c = 0; c < n_columns; c += kColumnGroup) {
      const Group group = group_at(block, c, width, n_columns);
      for (std::size_t r = r0; r < std::min(last, r0 + kTileRows); ++r)
        multiply(r, group, out + c * out_stride + r);
    }
  }
}

template <class Block>
void multiply_rows(const Block* rows, std::size_t width, std::size_t first, std::size_t last,
                   const std::byte* columns, std::size_t n_columns, float* out,
                   std::size_t out_stride) {
  using Row =
      void (*)(const Block*, std::size_t, const std::int16_t*, const float*, float*, std::size_t);
  constexpr Row kRows[] = {multiply_row<Block, 1>, multiply_row<Block, 2>, multiply_row<Block, 3>,
                           multiply_row<Block, 4>, multiply_row<Block, 5>, multiply_row<Block, 6>,
                           multiply_row<Block, 7>, multiply_row<Block, 8>};
  const std::size_t n_blocks = width / kSmallBlock;
  for_rows(kSmallBlock, width, first, last, n_columns, out, out_stride,
           [&](std::size_t r, const Group& group, float* at) {
             kRows[group.n_columns - 1](
                 rows + r * n_blocks, n_blocks,
                 reinterpret_cast<const std::int16_t*>(columns + group.values_at),
                 reinterpret_cast<const float*>(columns + group.scales_at), at, out_stride);
           });
}

template <class Block>
using LargeRow = void (*)(const Block*, std::size_t, const std::int8_t*, const float*,
                          const std::int16_t*, float*, std::size_t);
constexpr LargeRow<BlockQ4> kRowsQ4[] = {multiply_row_q4<1>, multiply_row_q4<2>, multiply_row_q4<3>,
                                         multiply_row_q4<4>, multiply_row_q4<5>, multiply_row_q4<6>,
                                         multiply_row_q4<7>, multiply_row_q4<8>};
constexpr LargeRow<BlockQ6> kRowsQ6[] = {multiply_row_q6<1>, multiply_row_q6<2>, multiply_row_q6<3>,
                                         multiply_row_q6<4>, multiply_row_q6<5>, multiply_row_q6<6>,
                                         multiply_row_q6<7>, multiply_row_q6<8>};

template <class Block>
void multiply_large_rows(const LargeRow<Block>* by_columns, const Block* rows, std::size_t width,
                         std::size_t first, std::size_t last, const std::byte* columns,
                         std::size_t n_columns, float* out, std::size_t out_stride) {
  const std::size_t n_blocks = width / kLargeBlock;
  for_rows(kLargeBlock, width, first, last, n_columns, out, out_stride,
           [&](std::size_t r, const Group& group, float* at) {
             by_columns[group.n_columns - 1](
                 rows + r * n_blocks, n_blocks,
                 reinterpret_cast<const std::int8_t*>(columns + group.values_at),
                 reinterpret_cast<const float*>(columns + group.scales_at),
                 reinterpret_cast<const std::int16_t*>(columns + group.sums_at), at, out_stride);
           });
}

PRECIS_AVX2 float quantise_block(const float* x, std::int16_t* out) {
  __m256 v[4];
  __m256 most = _mm256_setzero_ps();
  const __m256 sign = _mm256_set1_ps(-0.0f);
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm256_loadu_ps(x + 8 * i);
    most = _mm256_max_ps(most, _mm256_andnot_ps(sign, v[i]));
  }
  alignas(32) float lanes[8];
  _mm256_store_ps(lanes, most);
  const float largest = *std::max_element(lanes, lanes + 8);
  const float scale = largest / 127.0f;
  const __m256 inverse = _mm256_set1_ps(largest != 0.0f ? 127.0f / largest : 0.0f);
  alignas(32) std::int32_t rounded[32];
  for (int i = 0; i < 4; ++i)
    _mm256_store_si256(reinterpret_cast<__m256i*>(rounded + 8 * i),
                       _mm256_cvtps_epi32(_mm256_round_ps(_mm256_mul_ps(v[i], inverse),
                                                          _MM_FROUND_TO_NEAREST_INT)));
  for (int i = 0; i < 16; ++i) {
    out[i] = static_cast<std::int8_t>(rounded[2 * i]);
    out[16 + i] = static_cast<std::int8_t>(rounded[2 * i + 1]);
  }
  return _cvtsh_ss(_cvtss_sh(scale, _MM_FROUND_TO_NEAREST_INT));
}

// Values of one column's block; each 32 go `stride` bytes after those before. ggml divides by the
// value of largest size with its sign turned, so that it becomes -127.
float quantise_large_block(const float* x, std::int8_t* out, std::size_t stride,
                           std::int16_t* sums) {
  float largest = 0;
  for (std::size_t i = 0; i < kLargeBlock; ++i)
    if (std::fabs(x[i]) > std::fabs(largest)) largest = x[i];
  const float inverse = largest == 0.0f ? 0.0f : -127.0f / largest;
  for (std::size_t part = 0; part < kSumsPerBlock; ++part) {
    std::int8_t* at = out + part / 2 * stride + part % 2 * 16;
    int sum = 0;
    for (std::size_t i = 0; i < 16; ++i) {
      const int q = std::min(127, _mm_cvtss_si32(_mm_set_ss(inverse * x[part * 16 + i])));
      at[i] = static_cast<std::int8_t>(q);
      sum += at[i];
    }
    sums[part] = static_cast<std::int16_t>(sum);
  }
  return largest == 0.0f ? 0.0f : 1.0f / inverse;
}

}  // namespace

void quantise_columns(std::size_t block, const float* x, std::size_t width, std::size_t n_columns,
                      std::size_t first_block, std::size_t last_block, std::byte* columns) {
  const std::size_t parts = block / kSmallBlock;
  for (std::size_t c0 = 0; c0 < n_columns; c0 += kColumnGroup) {
    const Group group = group_at(block, c0, width, n_columns);
    const std::size_t n = group.n_columns;
    std::byte* values = columns + group.values_at;
    auto* scales = reinterpret_cast<float*>(columns + group.scales_at);
    auto* sums = reinterpret_cast<std::int16_t*>(columns + group.sums_at);
    for (std::size_t b = first_block; b < last_block; ++b) {
      for (std::size_t c = 0; c < n; ++c) {
        const float* from = x + (c0 + c) * width + b * block;
        const std::size_t at = (b * parts * n + c) * kSmallBlock;
        scales[b * kColumnGroup + c] =
            block == kSmallBlock
                ? quantise_block(from, reinterpret_cast<std::int16_t*>(values) + at)
                : quantise_large_block(from, reinterpret_cast<std::int8_t*>(values) + at,
                                       n * kSmallBlock, sums + (b * n + c) * kSumsPerBlock);
      }
      for (std::size_t c = n; c < kColumnGroup; ++c) scales[b * kColumnGroup + c] = 0.0f;
    }
  }
}

void multiply_columns(ColumnFormat format, const std::byte* rows, std::size_t width,
                      std::size_t first_row, std::size_t last_row, const std::byte* columns,
                      std::size_t n_columns, float* out, std::size_t out_stride) {
  switch (format) {
    case ColumnFormat::kQ8_0:
      return multiply_rows(reinterpret_cast<const BlockQ8*>(rows), width, first_row, last_row,
                           columns, n_columns, out, out_stride);
    case ColumnFormat::kQ5_0:
      return multiply_rows(reinterpret_cast<const BlockQ5*>(rows), width, first_row, last_row,
                           columns, n_columns, out, out_stride);
    case ColumnFormat::kQ4_K:
      return multiply_large_rows(kRowsQ4, reinterpret_cast<const BlockQ4*>(rows), width, first_row,
                                 last_row, columns, n_columns, out, out_stride);
    case ColumnFormat::kQ6_K:
      return multiply_large_rows(kRowsQ6, reinterpret_cast<const BlockQ6*>(rows), width, first_row,
                                 last_row, columns, n_columns, out, out_stride);
  }
}

#else

bool column_products_available() { return false; }
void quantise_columns(std::size_t, const float*, std::size_t, std::size_t, std::size_t, std::size_t,
                      std::byte*) {
  PRECIS_CHECK(false, "not for this processor");
}
void multiply_columns(ColumnFormat, const std::byte*, std::size_t, std::size_t, std::size_t,
                      const std::byte*, std::size_t, float*, std::size_t) {
  PRECIS_CHECK(false, "not for this processor");
}

#endif

}  // namespace precis
