#include "kernels/read_probe.h"

#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/read_probe.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace precis {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// The result depends on every word, so no load can be dropped. Eight accumulators: the loop is
// bound by its loads, not by the latency of the exclusive or.
std::uint64_t read_words(const std::uint64_t* words, std::size_t n) {
  using Tag = hn::ScalableTag<std::uint64_t>;
  const Tag d;
  constexpr std::size_t kWords = HWY_LANES(std::uint64_t);
  constexpr std::size_t kUnroll = 8;
  hn::Vec<Tag> sum[kUnroll];
  for (auto& s : sum) s = hn::Zero(d);
  std::size_t i = 0;
  for (; i + kUnroll * kWords <= n; i += kUnroll * kWords)
    for (std::size_t v = 0; v < kUnroll; ++v)
      sum[v] = hn::Xor(sum[v], hn::LoadU(d, words + i + v * kWords));
  for (std::size_t v = 1; v < kUnroll; ++v) sum[0] = hn::Xor(sum[0], sum[v]);
  std::uint64_t lanes[kWords];
  hn::StoreU(sum[0], d, lanes);
  std::uint64_t total = 0;
  for (const std::uint64_t lane : lanes) total ^= lane;
  for (; i < n; ++i) total ^= words[i];
  return total;
}

}  // namespace HWY_NAMESPACE
}  // namespace precis
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace precis {

HWY_EXPORT(read_words);

std::uint64_t read_words(const std::uint64_t* words, std::size_t n) {
  return HWY_DYNAMIC_DISPATCH(read_words)(words, n);
}

}  // namespace precis
#endif  // HWY_ONCE
