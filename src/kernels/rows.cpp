#include "kernels/rows.h"

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rows.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace precis {
namespace HWY_NAMESPACE {

// Vectors that hold a NaN are converted by base/half.h, so that the bits of a NaN do not depend on
// the instruction set.
void to_floats(const Half* from, float* to, std::size_t n) {
  const FloatTag d;
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const auto x = load(d, from + i);
    hn::StoreU(x, d, to + i);
    if (!hn::AllFalse(d, hn::IsNaN(x)))
      for (std::size_t lane = 0; lane < kLanes; ++lane) to[i + lane] = to_float(from[i + lane]);
  }
  for (; i < n; ++i) to[i] = to_float(from[i]);
}

void to_halfs(const float* from, Half* to, std::size_t n) {
  std::size_t i = 0;
  if constexpr (kNativeHalf) {
    const FloatTag d;
    const hn::Rebind<hwy::float16_t, FloatTag> d16;
    for (; i + kLanes <= n; i += kLanes) {
      const auto x = hn::LoadU(d, from + i);
      hn::StoreU(hn::DemoteTo(d16, x), d16, reinterpret_cast<hwy::float16_t*>(to + i));
      if (!hn::AllFalse(d, hn::IsNaN(x)))
        for (std::size_t lane = 0; lane < kLanes; ++lane) to[i + lane] = to_half(from[i + lane]);
    }
  }
  for (; i < n; ++i) to[i] = to_half(from[i]);
}

void row_norms(const Half* rows, std::size_t n, std::size_t width, float* norms) {
  for (std::size_t j = 0; j < n; ++j) {
    const Half* row = rows + j * width;
    norms[j] = std::sqrt(dot_product(row, row, width));
  }
}

float dot(const Half* a, const Half* b, std::size_t width) { return dot_product(a, b, width); }

}  // namespace HWY_NAMESPACE
}  // namespace precis
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace precis {

HWY_EXPORT(to_floats);
HWY_EXPORT(to_halfs);
HWY_EXPORT(row_norms);
HWY_EXPORT(dot);

void convert_rows(const Half* from, float* to, std::size_t n) {
  HWY_DYNAMIC_DISPATCH(to_floats)(from, to, n);
}

void convert_rows(const float* from, Half* to, std::size_t n) {
  HWY_DYNAMIC_DISPATCH(to_halfs)(from, to, n);
}

void row_norms(const Half* rows, std::size_t n, std::size_t width, float* norms) {
  HWY_DYNAMIC_DISPATCH(row_norms)(rows, n, width, norms);
}

float dot(const Half* a, const Half* b, std::size_t width) {
  return HWY_DYNAMIC_DISPATCH(dot)(a, b, width);
}

}  // namespace precis
#endif  // HWY_ONCE
