// The two inner loops of attention over quantised rows. The other factor, queries or probabilities,
// is rounded to whole numbers too, 32 of them with a step of their own, so that the products are
// products of whole numbers (whole-inl.h).
//
// What that costs in accuracy (packed_rows.h): a row's own rounding is off by up to half a step of
// 1/127 of the largest of 32 (q8_0) or 1/15 of their range (q4). The other factor's steps are
// 1/4095 and 1/127 of its largest; what they are multiplied with is a whole number within 127
// (q8_0), or, with 7.5 times the exact factor in place of the rounded one, within 7.5 of 0 (q4).
// Included once per target.
#if defined(PRECIS_KERNELS_QUANTISED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PRECIS_KERNELS_QUANTISED_INL_H_
#undef PRECIS_KERNELS_QUANTISED_INL_H_
#else
#define PRECIS_KERNELS_QUANTISED_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "kernels/whole-inl.h"

HWY_BEFORE_NAMESPACE();
namespace precis {
namespace HWY_NAMESPACE {

static_assert(kBlockChannels == kGroupEntries, "keys sum over channels, values over entries");
constexpr std::size_t kVectorsOf32 = kBlockChannels / kLanes;
constexpr float kMiddle = 7.5f;  // of the codes of q4

// Rows of codes and what their steps are worth.
template <class Code>
struct Codes {
  Code* codes;   // [rows, head_dim]
  float* steps;  // [rows, head_dim / 32]
  float* bases;  // [rows] (keys of q4) or [rows, head_dim / 32] (values): what is added to a sum

  Codes from_row(std::size_t r, std::size_t head_dim) const {
    return {codes + r * head_dim, steps + r * (head_dim / kBlockChannels), bases};
  }
};

#if PRECIS_WHOLE_PRODUCTS && HWY_TARGET == HWY_AVX2
// In order: the instructions that pack work within 128 bits, so 4 numbers stay together and their
// places are put right at the end.
HWY_INLINE void store_32(const hn::Vec<WholeTag> (&x)[kVectorsOf32], ShortCode* to) {
  const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(x[0].raw, x[1].raw),
                                            _mm256_packs_epi32(x[2].raw, x[3].raw));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permutevar8x32_epi32(packed, order));
}

HWY_INLINE void store_32(const hn::Vec<WholeTag> (&x)[kVectorsOf32], LongCode* to) {
  for (std::size_t v = 0; v < kVectorsOf32; v += 2) {
    const __m256i packed = _mm256_packs_epi32(x[v].raw, x[v + 1].raw);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + v * kLanes),
                        _mm256_permute4x64_epi64(packed, _MM_SHUFFLE(3, 1, 2, 0)));
  }
}
#elif PRECIS_WHOLE_PRODUCTS
template <class Code>
HWY_INLINE void store_32(const hn::Vec<WholeTag> (&x)[kVectorsOf32], Code* to) {
  const hn::Rebind<Code, WholeTag> d;
  for (std::size_t v = 0; v < kVectorsOf32; ++v)
    hn::StoreU(hn::DemoteTo(d, x[v]), d, to + v * kLanes);
}
#else
HWY_INLINE void store_32(const hn::Vec<WholeTag> (&x)[kVectorsOf32], float* to) {
  const FloatTag d;
  for (std::size_t v = 0; v < kVectorsOf32; ++v)
    hn::StoreU(hn::ConvertTo(d, x[v]), d, to + v * kLanes);
}
#endif

// The largest of 32 numbers, lane by lane.
HWY_INLINE hn::Vec<FloatTag> largest_of_32(const hn::Vec<FloatTag> (&x)[kVectorsOf32]) {
  auto largest = x[0];
  for (std::size_t v = 1; v < kVectorsOf32; ++v) largest = hn::Max(largest, x[v]);
  return largest;
}

HWY_INLINE hn::Vec<FloatTag> largest_size_of_32(const hn::Vec<FloatTag> (&x)[kVectorsOf32]) {
  hn::Vec<FloatTag> size[kVectorsOf32];
  for (std::size_t v = 0; v < kVectorsOf32; ++v) size[v] = hn::Abs(x[v]);
  return largest_of_32(size);
}

// Rounds 32 numbers of each row, x [kRows, 32], to codes [kRows, stride] of at most `most`, given
// the largest lane by lane; writes steps [kRows, step_stride] and the sums of the codes, lane by
// lane. Adding 1.5 * 2^23 rounds to a whole number and leaves it in the low bits. Numbers too small
// to be divided by become 0. All rows take each step together, as in exp_nonpositive().
template <std::size_t kRows, class Code>
HWY_INLINE void round_32(const float (&x)[kRows][kBlockChannels],
                         const hn::Vec<FloatTag> (&lanes)[kRows], float most, Code* codes,
                         std::size_t stride, float* steps, std::size_t step_stride,
                         hn::Vec<FloatTag> (&sums)[kRows]) {
  const FloatTag d;
  const WholeTag di;
  const auto magic = hn::Set(d, 12582912.0f);
  float largest[kRows];
  float inverse[kRows];
  for (std::size_t r = 0; r < kRows; ++r) largest[r] = largest_by_halves(d, lanes[r]);
  for (std::size_t r = 0; r < kRows; ++r) {
    inverse[r] = largest[r] > 1e-30f ? most / largest[r] : 0.0f;
    steps[r * step_stride] = largest[r] * (1.0f / most);
  }
  for (std::size_t r = 0; r < kRows; ++r) {
    const auto factor = hn::Set(d, inverse[r]);
    hn::Vec<WholeTag> whole[kVectorsOf32];
    auto sum = hn::Zero(di);
    for (std::size_t v = 0; v < kVectorsOf32; ++v) {
      const auto shifted = hn::MulAdd(hn::LoadU(d, x[r] + v * kLanes), factor, magic);
      whole[v] = hn::Sub(hn::BitCast(di, shifted), hn::BitCast(di, magic));
      sum = hn::Add(sum, whole[v]);
    }
    store_32(whole, codes + r * stride);
    sums[r] = hn::ConvertTo(d, sum);
  }
}

// Queries for keys of q8_0, once per call. 0 * x: a NaN must stay one.
inline void round_queries(const float* queries, std::size_t n_rows, std::size_t head_dim,
                          const Codes<LongCode>& to) {
  const FloatTag d;
  for (std::size_t i = 0; i < n_rows * head_dim; i += kBlockChannels) {
    hn::Vec<FloatTag> x[kVectorsOf32], sum[1];
    float row[1][kBlockChannels];
    auto zero = hn::Zero(d);
    for (std::size_t v = 0; v < kVectorsOf32; ++v) {
      x[v] = hn::LoadU(d, queries + i + v * kLanes);
      zero = hn::MulAdd(x[v], hn::Zero(d), zero);
      hn::StoreU(x[v], d, row[0] + v * kLanes);
    }
    const hn::Vec<FloatTag> largest[1] = {largest_size_of_32(x)};
    float* step = to.steps + i / kBlockChannels;
    round_32(row, largest, kMostLong, to.codes + i, 0, step, 0, sum);
    *step += sum_by_halves(d, zero);
  }
}

// Queries for a group of q4 keys. q.k = sum of (q scale) u + q.low: scale and low belong to the
// channel, so they go to the query.
template <std::size_t kRows>
HWY_INLINE void round_scaled_queries(const float* queries, std::size_t head_dim,
                                     const std::uint8_t* group, const Codes<ShortCode>& to) {
  const FloatTag d;
  const auto* scales = reinterpret_cast<const Half*>(group);
  hn::Vec<FloatTag> base[kRows];
  for (std::size_t r = 0; r < kRows; ++r) base[r] = hn::Zero(d);
  for (std::size_t c = 0; c < head_dim; c += kBlockChannels) {
    hn::Vec<FloatTag> scale[kVectorsOf32], middle[kVectorsOf32];
    for (std::size_t v = 0; v < kVectorsOf32; ++v) {
      scale[v] = load(d, scales + c + v * kLanes);
      const auto low = load(d, scales + head_dim + c + v * kLanes);
      middle[v] = hn::MulAdd(scale[v], hn::Set(d, kMiddle), low);
    }
    float scaled[kRows][kBlockChannels];
    hn::Vec<FloatTag> largest[kRows], sum[kRows];
    for (std::size_t r = 0; r < kRows; ++r) {
      hn::Vec<FloatTag> x[kVectorsOf32];
      for (std::size_t v = 0; v < kVectorsOf32; ++v) {
        const auto q = hn::LoadU(d, queries + r * head_dim + c + v * kLanes);
        base[r] = hn::MulAdd(q, middle[v], base[r]);
        x[v] = hn::Mul(q, scale[v]);
        hn::StoreU(x[v], d, scaled[r] + v * kLanes);
      }
      largest[r] = largest_size_of_32(x);
    }
    float* steps = to.steps + c / kBlockChannels;
    const std::size_t n_blocks = head_dim / kBlockChannels;
    round_32(scaled, largest, kMostShort, to.codes + c, head_dim, steps, n_blocks, sum);
    for (std::size_t r = 0; r < kRows; ++r)
      base[r] = hn::NegMulAdd(sum[r], hn::Set(d, kMiddle * steps[r * n_blocks]), base[r]);
  }
  for (std::size_t r = 0; r < kRows; ++r) to.bases[r] = sum_by_halves(d, base[r]);
}

// Probabilities p [kRows, p_stride] of a full group times the scales of its values. The lows of the
// entries add the same to every channel of a block.
template <std::size_t kRows, bool kWithLows, class Code>
HWY_INLINE void round_probabilities(const float* p, std::size_t p_stride, std::size_t head_dim,
                                    const std::uint8_t* scales, const Codes<Code>& to) {
  const FloatTag d;
  const std::size_t n_blocks = head_dim / kBlockChannels;
  for (std::size_t b = 0; b < n_blocks; ++b) {
    const Half* at = reinterpret_cast<const Half*>(scales) + b * kGroupEntries;
    hn::Vec<FloatTag> scale[kVectorsOf32], middle[kVectorsOf32];
    for (std::size_t v = 0; v < kVectorsOf32; ++v) {
      scale[v] = load(d, at + v * kLanes);
      middle[v] = hn::Zero(d);
      if constexpr (kWithLows) {
        const auto low = load(d, at + n_blocks * kGroupEntries + v * kLanes);
        middle[v] = hn::MulAdd(scale[v], hn::Set(d, kMiddle), low);
      }
    }
    float scaled[kRows][kGroupEntries];
    hn::Vec<FloatTag> largest[kRows], sum[kRows], base[kRows];
    for (std::size_t r = 0; r < kRows; ++r) {
      hn::Vec<FloatTag> x[kVectorsOf32];
      base[r] = hn::Zero(d);
      for (std::size_t v = 0; v < kVectorsOf32; ++v) {
        const auto own = hn::LoadU(d, p + r * p_stride + v * kLanes);
        if constexpr (kWithLows) base[r] = hn::MulAdd(own, middle[v], base[r]);
        x[v] = hn::Mul(own, scale[v]);
        hn::StoreU(x[v], d, scaled[r] + v * kLanes);
      }
      largest[r] = largest_of_32(x);
    }
    float* steps = to.steps + b;
    float* bases = to.bases + b;
    round_32(scaled, largest, kWithLows ? kMostShort : kMostLong, to.codes + b * kGroupEntries,
             head_dim, steps, n_blocks, sum);
    for (std::size_t r = 0; r < kRows; ++r) {
      bases[r * n_blocks] = 0.0f;
      if constexpr (kWithLows) {
        const auto factor = hn::Set(d, kMiddle * steps[r * n_blocks]);
        bases[r * n_blocks] = sum_by_halves(d, hn::NegMulAdd(sum[r], factor, base[r]));
      }
    }
  }
}

// Logits z [kRows, z_stride] of a full group of keys. Sums of q8_0 are worth the query's step times
// the entry's scale (f16 [head_dim / 32, 32]); those of q4 the step alone, and start at the base.
template <std::size_t kRows, bool kEntryScales, class Numbers>
HWY_INLINE void multiply_key_codes(const Numbers& numbers,
                                   const Codes<typename Numbers::Code>& query,
                                   const std::uint8_t* entry_scales, std::size_t head_dim, float* z,
                                   std::size_t z_stride, Ahead& fetched) {
  Ahead ahead = fetched;
  constexpr std::size_t kV = Numbers::template vectors<kRows>();
  const FloatTag d;
  const std::size_t n_blocks = head_dim / kBlockChannels;
  for (std::size_t column = 0; column < kGroupEntries; column += kV * kLanes) {
    hn::Vec<FloatTag> total[kRows][kV];
    for (std::size_t r = 0; r < kRows; ++r)
      for (std::size_t v = 0; v < kV; ++v)
        total[r][v] = hn::Set(d, kEntryScales ? 0.0f : query.bases[r]);
    for (std::size_t b = 0; b < n_blocks; ++b) {
      hn::Vec<FloatTag> sum[kRows][kV];
      numbers.sums(query.codes + b * kBlockChannels, head_dim, b, column, ahead, sum);
      hn::Vec<FloatTag> scale[kV];
      for (std::size_t v = 0; v < kV; ++v) {
        scale[v] = hn::Set(d, 1.0f);
        if constexpr (kEntryScales)
          scale[v] = load(d, reinterpret_cast<const Half*>(entry_scales) + b * kGroupEntries +
                                 column + v * kLanes);
      }
      for (std::size_t r = 0; r < kRows; ++r) {
        const auto step = hn::Set(d, query.steps[r * n_blocks + b]);
        for (std::size_t v = 0; v < kV; ++v) {
          const auto unit = kEntryScales ? hn::Mul(step, scale[v]) : step;
          total[r][v] = hn::MulAdd(sum[r][v], unit, total[r][v]);
        }
      }
    }
    for (std::size_t r = 0; r < kRows; ++r)
      for (std::size_t v = 0; v < kV; ++v)
        hn::StoreU(total[r][v], d, z + r * z_stride + column + v * kLanes);
  }
  fetched = ahead;
}

// out [kRows, head_dim] = keep * out + p * values for a full group of values.
template <std::size_t kRows, class Numbers>
HWY_INLINE void add_value_codes(const Numbers& numbers, const Codes<typename Numbers::Code>& p,
                                std::size_t head_dim, const float* keep, float* out,
                                Ahead& fetched) {
  Ahead ahead = fetched;
  constexpr std::size_t kV = Numbers::template vectors<kRows>();
  // Vectors side by side cover kV * kLanes columns; vectors kColumns apart, kLanes.
  constexpr std::size_t kStep = Numbers::kApart == kLanes ? kV * kLanes : kLanes;
  const FloatTag d;
  const std::size_t n_blocks = head_dim / kBlockChannels;
  for (std::size_t b = 0; b < n_blocks; ++b) {
    for (std::size_t column = 0; column < Numbers::kColumns; column += kStep) {
      hn::Vec<FloatTag> sum[kRows][kV];
      numbers.sums(p.codes + b * kGroupEntries, head_dim, b, column, ahead, sum);
      for (std::size_t r = 0; r < kRows; ++r) {
        const auto step = hn::Set(d, p.steps[r * n_blocks + b]);
        const auto base = hn::Set(d, p.bases[r * n_blocks + b]);
        const auto factor = hn::Set(d, keep[r]);
        for (std::size_t v = 0; v < kV; ++v) {
          float* at = out + r * head_dim + b * kBlockChannels + column + v * Numbers::kApart;
          const auto kept = hn::MulAdd(hn::LoadU(d, at), factor, base);
          hn::StoreU(hn::MulAdd(sum[r][v], step, kept), d, at);
        }
      }
    }
  }
  fetched = ahead;
}

}  // namespace HWY_NAMESPACE
}  // namespace precis
HWY_AFTER_NAMESPACE();

#endif  // include guard
