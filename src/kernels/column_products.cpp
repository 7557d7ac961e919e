#include "kernels/column_products.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

// Not in Highway like the other kernels: version 1.0.3 has no product of unsigned with signed
// bytes.
#if defined(__x86_64__)
#include <immintrin.h>
#define PRECIS_AVX2 __attribute__((target("avx2,fma,f16c")))
#endif

namespace precis {
namespace {

// A group of up to 8 columns: bytes [n_blocks, n_columns, 32], then scales [n_blocks, 8].
struct Group {
  std::size_t n_columns = 0;
  std::size_t bytes_at = 0;
  std::size_t scales_at = 0;
};

Group group_at(std::size_t first_column, std::size_t width, std::size_t n_columns) {
  const std::size_t scales = width / kBlockWeights * kColumnGroup * sizeof(float);
  Group group;
  group.n_columns = std::min(kColumnGroup, n_columns - first_column);
  group.bytes_at = first_column * width + first_column / kColumnGroup * scales;
  group.scales_at = group.bytes_at + group.n_columns * width;
  return group;
}

}  // namespace

std::size_t quantised_columns_bytes(std::size_t width, std::size_t n_columns) {
  const std::size_t n_groups = (n_columns + kColumnGroup - 1) / kColumnGroup;
  return n_columns * width + n_groups * (width / kBlockWeights) * kColumnGroup * sizeof(float);
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
static_assert(sizeof(BlockQ8) == 34 && sizeof(BlockQ5) == 22);

PRECIS_AVX2 inline __m256i unpack(const BlockQ8& block) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block.weights));
}

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
// the like were 10 to 25 % slower.
template <class Block, std::size_t N>
PRECIS_AVX2 void multiply_row(const Block* row, std::size_t n_blocks, const std::int8_t* bytes,
                              const float* scales, float* out, std::size_t out_stride) {
  const __m256i ones = _mm256_set1_epi16(1);
  __m256 sums[N];
  for (std::size_t c = 0; c < N; ++c) sums[c] = _mm256_setzero_ps();
  for (std::size_t b = 0; b < n_blocks; ++b) {
    const __m256i weights = unpack(row[b]);
    const __m256i size = _mm256_abs_epi8(weights);
    // Products of two f16 numbers are exact in f32.
    alignas(32) float scale[kColumnGroup];
    _mm256_store_ps(scale, _mm256_mul_ps(_mm256_set1_ps(_cvtsh_ss(row[b].scale)),
                                         _mm256_loadu_ps(scales + b * kColumnGroup)));
    for (std::size_t c = 0; c < N; ++c) {
      const __m256i column =
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes + (b * N + c) * kBlockWeights));
      const __m256i pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8(column, weights));
      const __m256 fours = _mm256_cvtepi32_ps(_mm256_madd_epi16(ones, pairs));
      sums[c] = _mm256_fmadd_ps(_mm256_broadcast_ss(scale + c), fours, sums[c]);
    }
  }
  for (std::size_t c = 0; c < N; ++c) out[c * out_stride] = sum_of_lanes(sums[c]);
}

template <class Block>
void multiply_rows(const Block* rows, std::size_t width, std::size_t first, std::size_t last,
                   const std::byte* columns, std::size_t n_columns, float* out,
                   std::size_t out_stride) {
  const std::size_t n_blocks = width / kBlockWeights;
  using Row =
      void (*)(const Block*, std::size_t, const std::int8_t*, const float*, float*, std::size_t);
  constexpr Row kRows[] = {multiply_row<Block, 1>, multiply_row<Block, 2>, multiply_row<Block, 3>,
                           multiply_row<Block, 4>, multiply_row<Block, 5>, multiply_row<Block, 6>,
                           multiply_row<Block, 7>, multiply_row<Block, 8>};
  // 16 rows are some 15 KiB: they stay in the first cache from one group of columns to the next.
  constexpr std::size_t kTileRows = 16;
  for (std::size_t r0 = first; r0 < last; r0 += kTileRows) {
    for (std::size_t c = 0; c < n_columns; c += kColumnGroup) {
      const Group group = group_at(c, width, n_columns);
      const auto* bytes = reinterpret_cast<const std::int8_t*>(columns + group.bytes_at);
      const auto* scales = reinterpret_cast<const float*>(columns + group.scales_at);
      for (std::size_t r = r0; r < std::min(last, r0 + kTileRows); ++r)
        kRows[group.n_columns - 1](rows + r * n_blocks, n_blocks, bytes, scales,
                                   out + c * out_stride + r, out_stride);
    }
  }
}

PRECIS_AVX2 float quantise_block(const float* x, std::int8_t* out) {
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
  for (int i = 0; i < 32; ++i) out[i] = static_cast<std::int8_t>(rounded[i]);
  return _cvtsh_ss(_cvtss_sh(scale, _MM_FROUND_TO_NEAREST_INT));
}

}  // namespace

void quantise_columns(const float* x, std::size_t width, std::size_t n_columns,
                      std::size_t first_block, std::size_t last_block, std::byte* columns) {
  for (std::size_t c0 = 0; c0 < n_columns; c0 += kColumnGroup) {
    const Group group = group_at(c0, width, n_columns);
    auto* bytes = reinterpret_cast<std::int8_t*>(columns + group.bytes_at);
    auto* scales = reinterpret_cast<float*>(columns + group.scales_at);
    for (std::size_t b = first_block; b < last_block; ++b) {
      for (std::size_t c = 0; c < kColumnGroup; ++c)
        scales[b * kColumnGroup + c] =
            c < group.n_columns ? quantise_block(x + (c0 + c) * width + b * kBlockWeights,
                                                 bytes + (b * group.n_columns + c) * kBlockWeights)
                                : 0.0f;
    }
  }
}

void multiply_columns(BlockFormat format, const std::byte* rows, std::size_t width,
                      std::size_t first_row, std::size_t last_row, const std::byte* columns,
                      std::size_t n_columns, float* out, std::size_t out_stride) {
  if (format == BlockFormat::kQ8_0)
    multiply_rows(reinterpret_cast<const BlockQ8*>(rows), width, first_row, last_row, columns,
                  n_columns, out, out_stride);
  else
    multiply_rows(reinterpret_cast<const BlockQ5*>(rows), width, first_row, last_row, columns,
                  n_columns, out, out_stride);
}

#else

bool column_products_available() { return false; }
void quantise_columns(const float*, std::size_t, std::size_t, std::size_t, std::size_t,
                      std::byte*) {
  PRECIS_CHECK(false, "not for this processor");
}
void multiply_columns(BlockFormat, const std::byte*, std::size_t, std::size_t, std::size_t,
                      const std::byte*, std::size_t, float*, std::size_t) {
  PRECIS_CHECK(false, "not for this processor");
}

#endif

}  // namespace precis
