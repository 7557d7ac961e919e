// What converting a number to f32 adds to multiplying it by a few others: loops over a row of 64
// numbers that stay in the first cache, 3 sums each (a group of 3), from f32, f16 and 8 bits; and
// the same sums of whole numbers without conversion, as kernels/whole-inl.h takes them.
// Cycles are the processor's own: a chain of additions, one a cycle, is timed beside each loop.
// Medians of many turns, all loops in each.
//
//   conversion_bench [turns = 2000]
#include <cstdio>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#include <x86intrin.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

namespace {

#define AVX2 __attribute__((target("avx2,fma,f16c")))

constexpr std::size_t kChannels = 64;
constexpr std::size_t kEntries = 32;  // along the registers, two vectors of 8 at a time
constexpr std::size_t kRows = 3;
constexpr std::size_t kWidth = 16;

struct FromFloat {
  const float* data;
  AVX2 inline __m256 operator()(std::size_t i) const { return _mm256_loadu_ps(data + i); }
};
struct FromHalf {
  const std::uint16_t* data;
  AVX2 inline __m256 operator()(std::size_t i) const {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data + i)));
  }
};
struct FromByte {
  const std::int8_t* data;
  AVX2 inline __m256 operator()(std::size_t i) const {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(data + i));
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
  }
};

template <class Load>
AVX2 __attribute__((noinline)) void multiply(const Load& load, const float* queries, float* out) {
  for (std::size_t column = 0; column < kEntries; column += kWidth) {
    __m256 sum[kRows][2];
    for (auto& row : sum) row[0] = row[1] = _mm256_setzero_ps();
    for (std::size_t c = 0; c < kChannels; ++c) {
      const __m256 low = load(c * kEntries + column);
      const __m256 high = load(c * kEntries + column + 8);
#pragma GCC unroll 3
      for (std::size_t r = 0; r < kRows; ++r) {
        const __m256 query = _mm256_set1_ps(queries[r * kChannels + c]);
        sum[r][0] = _mm256_fmadd_ps(query, low, sum[r][0]);
        sum[r][1] = _mm256_fmadd_ps(query, high, sum[r][1]);
      }
    }
    for (std::size_t r = 0; r < kRows; ++r) {
      _mm256_storeu_ps(out + r * kEntries + column, sum[r][0]);
      _mm256_storeu_ps(out + r * kEntries + column + 8, sum[r][1]);
    }
  }
}

// Pairs of channels side by side.
AVX2 __attribute__((noinline)) void multiply_whole(const std::int8_t* data,
                                                   const std::int32_t* pairs, float* out) {
  for (std::size_t column = 0; column < kEntries; column += kWidth) {
    __m256i sum[kRows][2];
    for (auto& row : sum) row[0] = row[1] = _mm256_setzero_si256();
    for (std::size_t c = 0; c < kChannels / 2; ++c) {
      const auto* at = reinterpret_cast<const __m128i*>(data + (c * kEntries + column) * 2);
      const __m256i low = _mm256_cvtepi8_epi16(_mm_loadu_si128(at));
      const __m256i high = _mm256_cvtepi8_epi16(_mm_loadu_si128(at + 1));
#pragma GCC unroll 3
      for (std::size_t r = 0; r < kRows; ++r) {
        const __m256i query = _mm256_set1_epi32(pairs[r * kChannels / 2 + c]);
        sum[r][0] = _mm256_add_epi32(sum[r][0], _mm256_madd_epi16(low, query));
        sum[r][1] = _mm256_add_epi32(sum[r][1], _mm256_madd_epi16(high, query));
      }
    }
    for (std::size_t r = 0; r < kRows; ++r) {
      _mm256_storeu_ps(out + r * kEntries + column, _mm256_cvtepi32_ps(sum[r][0]));
      _mm256_storeu_ps(out + r * kEntries + column + 8, _mm256_cvtepi32_ps(sum[r][1]));
    }
  }
}

double counts_per_cycle() {
  constexpr int kSteps = 2000;
  std::uint64_t x = 0;
  const std::uint64_t start = __rdtsc();
  for (int i = 0; i < kSteps; ++i) asm volatile("add $1, %0\n\tadd $1, %0" : "+r"(x));
  return static_cast<double>(__rdtsc() - start) / (2 * kSteps);
}

template <class Loop>
double cycles_per_entry(const Loop& loop) {
  constexpr int kRepeats = 16;
  const std::uint64_t start = __rdtsc();
  for (int i = 0; i < kRepeats; ++i) loop();
  const auto counts = static_cast<double>(__rdtsc() - start);
  return counts / (kRepeats * kEntries) / counts_per_cycle();
}

void run(int n_turns) {
  std::vector<float> f32(kChannels * kEntries, 0.5f), queries(kRows * kChannels, 0.25f);
  std::vector<std::uint16_t> f16(f32.size(), 0x3800);
  std::vector<std::int8_t> i8(f32.size(), 3);
  std::vector<std::int32_t> pairs(kRows * kChannels / 2, 0x00010002);
  std::vector<float> out(kRows * kEntries);
  const char* names[] = {"f32", "f16 converted", "8 bits converted", "8 bits as whole numbers"};
  std::vector<double> turns[4];
  for (int turn = 0; turn < n_turns; ++turn) {
    const double now[] = {
        cycles_per_entry([&] { multiply(FromFloat{f32.data()}, queries.data(), out.data()); }),
        cycles_per_entry([&] { multiply(FromHalf{f16.data()}, queries.data(), out.data()); }),
        cycles_per_entry([&] { multiply(FromByte{i8.data()}, queries.data(), out.data()); }),
        cycles_per_entry([&] { multiply_whole(i8.data(), pairs.data(), out.data()); })};
    for (int i = 0; i < 4; ++i) turns[i].push_back(now[i]);
  }
  double median[4];
  for (int i = 0; i < 4; ++i) {
    std::sort(turns[i].begin(), turns[i].end());
    median[i] = turns[i][turns[i].size() / 2];
  }
  std::printf("%zu channels, %zu sums: cycles an entry\n", kChannels, kRows);
  for (int i = 0; i < 4; ++i)
    std::printf("%-24s %6.1f  %.2f of f32\n", names[i], median[i], median[i] / median[0]);
}

}  // namespace

int main(int argc, char** argv) {
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
    std::fprintf(stderr, "conversion_bench: needs AVX2\n");
    return 1;
  }
  run(argc > 1 ? std::atoi(argv[1]) : 2000);
}
#else
int main() {
  std::fprintf(stderr, "conversion_bench: for x86-64 with AVX2\n");
  return 1;
}
#endif
