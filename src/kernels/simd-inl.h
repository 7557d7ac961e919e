// Loads of f16 and the few functions of a vector that the kernels need. Included once per target.
#if defined(PRECIS_KERNELS_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PRECIS_KERNELS_SIMD_INL_H_
#undef PRECIS_KERNELS_SIMD_INL_H_
#else
#define PRECIS_KERNELS_SIMD_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/half.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace precis {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
constexpr std::size_t kLanes = HWY_LANES(float);

// Highway 1.0.3 emulates f16 conversion where there is no instruction, but takes infinity and NaN
// for numbers and truncates instead of rounding. There we convert ourselves.
constexpr bool kNativeHalf = HWY_TARGET <= HWY_AVX2 || HWY_TARGET == HWY_NEON;

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const float* from) {
  return hn::LoadU(d, from);
}

// Exact for every f16, except that an instruction may turn a signalling NaN into a quiet one.
template <class D>
HWY_INLINE hn::Vec<D> load(D d, const Half* from) {
  if constexpr (kNativeHalf) {
    const hn::Rebind<hwy::float16_t, D> d16;
    return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(from)));
  } else {
    const hn::Rebind<std::uint16_t, D> d16;
    const hn::RebindToSigned<D> di;
    const hn::RebindToUnsigned<D> du;
    const auto bits =
        hn::PromoteTo(du, hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(from)));
    const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000u)));
    const auto magnitude = hn::BitCast(di, hn::And(bits, hn::Set(du, 0x7fffu)));
    // Moves the exponent from bias 15 to bias 127; infinities and NaN go on to exponent 255.
    const auto rebias = hn::Set(di, 0x38000000);
    const auto special = hn::Gt(magnitude, hn::Set(di, 0x7bff));
    auto normal = hn::Add(hn::ShiftLeft<13>(magnitude), rebias);
    normal = hn::Add(normal, hn::IfThenElseZero(special, rebias));
    const auto subnormal = hn::Mul(hn::ConvertTo(d, magnitude), hn::Set(d, 0x1p-24f));
    const auto is_subnormal = hn::Lt(magnitude, hn::Set(di, 0x0400));
    const auto value = hn::IfThenElse(is_subnormal, hn::BitCast(di, subnormal), normal);
    return hn::BitCast(d, hn::Or(hn::BitCast(du, value), sign));
  }
}

// x <- exp(x) for x <= 0, within 2 ulp; 0 below -87.3 (smallest normal float) and for -inf; exp(0)
// is 1. Range reduction and polynomial of Cephes' expf; adding 1.5 * 2^23 rounds to an integer and
// leaves it in the low bits, so that the exponent costs one shift and one addition. About 14
// instructions, each of which waits for the one before: hence all vectors take each step together,
// as a processor sees only 36 operations ahead (Zen 1).
template <std::size_t kVectors, class D>
HWY_INLINE void exp_nonpositive(D d, hn::Vec<D> (&x)[kVectors]) {
  const hn::RebindToSigned<D> di;
  const auto magic = hn::Set(d, 12582912.0f);
  hn::Vec<D> shifted[kVectors], r[kVectors], p[kVectors];
  const auto each = [](const auto& step) HWY_ATTR {
    HWY_UNROLL(8)
    for (std::size_t v = 0; v < kVectors; ++v) step(v);
  };
  const auto horner = [&](float c) HWY_ATTR {
    HWY_UNROLL(8)
    for (std::size_t v = 0; v < kVectors; ++v) p[v] = hn::MulAdd(p[v], r[v], hn::Set(d, c));
  };
  each([&](std::size_t v)
           HWY_ATTR { shifted[v] = hn::MulAdd(x[v], hn::Set(d, 1.44269504088896341f), magic); });
  each([&](std::size_t v) HWY_ATTR { p[v] = hn::Sub(shifted[v], magic); });
  each([&](std::size_t v) HWY_ATTR { r[v] = hn::NegMulAdd(p[v], hn::Set(d, 0.693359375f), x[v]); });
  each([&](std::size_t v) HWY_ATTR {
    r[v] = hn::NegMulAdd(p[v], hn::Set(d, -2.12194440e-4f), r[v]);
    p[v] = hn::Set(d, 1.9875691500e-4f);
  });
  horner(1.3981999507e-3f);
  horner(8.3334519073e-3f);
  horner(4.1665795894e-2f);
  horner(1.6666665459e-1f);
  horner(5.0000001201e-1f);
  each([&](std::size_t v) HWY_ATTR { p[v] = hn::MulAdd(hn::Mul(r[v], r[v]), p[v], r[v]); });
  each([&](std::size_t v) HWY_ATTR {
    const auto exponent = hn::ShiftLeft<23>(hn::BitCast(di, shifted[v]));
    const auto one_more = hn::BitCast(di, hn::Add(p[v], hn::Set(d, 1.0f)));
    const auto value = hn::BitCast(d, hn::Add(one_more, exponent));
    // Not "x >= -87.3": a NaN must stay one.
    x[v] = hn::IfThenZeroElse(hn::Lt(x[v], hn::Set(d, -87.3f)), value);
  });
}

template <class D>
HWY_INLINE hn::Vec<D> exp_nonpositive(D d, hn::Vec<D> x) {
  hn::Vec<D> one[1] = {x};
  exp_nonpositive(d, one);
  return one[0];
}

// Absolute error below 2e-7, which a soft-cap of 50 turns into 1e-5 of a logit.
template <class D>
HWY_INLINE hn::Vec<D> tanh(D d, hn::Vec<D> x) {
  const auto one = hn::Set(d, 1.0f);
  const auto e = exp_nonpositive(d, hn::Mul(hn::Abs(x), hn::Set(d, -2.0f)));
  return hn::CopySign(hn::Div(hn::Sub(one, e), hn::Add(one, e)), x);
}

template <class D>
HWY_INLINE float largest_lane(D d, hn::Vec<D> x) {
  if constexpr (HWY_TARGET ==
                HWY_EMU128) {  // its MaxOfLanes gives the lowest finite float for -inf
    float largest = hn::GetLane(x);
    for (std::size_t i = 1; i < hn::Lanes(d); ++i)
      largest = std::max(largest, hn::ExtractLane(x, i));
    return largest;
  } else {
    return hn::GetLane(hn::MaxOfLanes(d, x));
  }
}

// As hn::SumOfLanes and MaxOfLanes, by halves of the register: Highway's way for 256 bits exchanges
// them first, 8 operations on Zen 1 where taking the upper one is one.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
template <class D>
HWY_INLINE float sum_by_halves(D d, hn::Vec<D> x) {
  if constexpr (hn::MaxLanes(D()) > 4) {
    const hn::Half<D> half;
    return sum_by_halves(half, hn::Add(hn::LowerHalf(half, x), hn::UpperHalf(half, x)));
  } else {
    return hn::GetLane(hn::SumOfLanes(d, x));
  }
}

template <class D>
HWY_INLINE float largest_by_halves(D d, hn::Vec<D> x) {
  if constexpr (hn::MaxLanes(D()) > 4) {
    const hn::Half<D> half;
    return largest_by_halves(half, hn::Max(hn::LowerHalf(half, x), hn::UpperHalf(half, x)));
  } else {
    return largest_lane(d, x);
  }
}
#else
template <class D>
HWY_INLINE float sum_by_halves(D d, hn::Vec<D> x) {
  return hn::GetLane(hn::SumOfLanes(d, x));
}

template <class D>
HWY_INLINE float largest_by_halves(D d, hn::Vec<D> x) {
  return largest_lane(d, x);
}
#endif

HWY_INLINE float scalar(float x) { return x; }
HWY_INLINE float scalar(Half x) { return to_float(x); }

// Four accumulators hide the latency of the multiply-add; the order of sums is fixed by width
// alone.
template <class A, class B>
HWY_INLINE float dot_product(const A* a, const B* b, std::size_t width) {
  const FloatTag d;
  hn::Vec<FloatTag> sum[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  std::size_t i = 0;
  for (; i + 4 * kLanes <= width; i += 4 * kLanes) {
    for (std::size_t v = 0; v < 4; ++v) {
      const std::size_t at = i + v * kLanes;
      sum[v] = hn::MulAdd(load(d, a + at), load(d, b + at), sum[v]);
    }
  }
  for (; i + kLanes <= width; i += kLanes)
    sum[0] = hn::MulAdd(load(d, a + i), load(d, b + i), sum[0]);
  const auto all = hn::Add(hn::Add(sum[0], sum[1]), hn::Add(sum[2], sum[3]));
  float total = hn::GetLane(hn::SumOfLanes(d, all));
  for (; i < width; ++i) total += scalar(a[i]) * scalar(b[i]);
  return total;
}

}  // namespace HWY_NAMESPACE
}  // namespace precis
HWY_AFTER_NAMESPACE();

#endif  // include guard
