#include <algorithm>
#include <cstddef>

#include "kernels/attention.h"
#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/block_attention.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// highway.h first: the next two need the target's namespace.
#include "hwy/contrib/math/math-inl.h"
#include "kernels/block-inl.h"

HWY_BEFORE_NAMESPACE();
namespace precis {
namespace HWY_NAMESPACE {

// Working memory of a call.
struct BlockParts {
  Half* turned;   // [head_dim, kBlock] transposed keys
  float* logits;  // [group rounded up to kMaxRows, kBlock]
  float* bias;    // [kBlock], all 0
};

inline BlockParts make_parts(const QueryView& queries, Scratch& scratch) {
  const std::size_t n_turned = queries.head_dim * kBlock / 2;  // two f16 in a float
  const std::size_t n_logits = (queries.group + kMaxRows - 1) / kMaxRows * kMaxRows * kBlock;
  float* at = scratch.floats(n_turned + n_logits + kBlock);
  std::fill_n(at + n_turned + n_logits, kBlock, 0.0f);
  return {reinterpret_cast<Half*>(at), at + n_turned, at + n_turned + n_logits};
}

// Logits of one token's group over the columns of a block of keys, [group, kBlock].
HWY_INLINE void token_logits(const QueryView& queries, std::size_t token, const BlockParts& parts,
                             const LogitRule& rule, Span seen) {
  const Span computed = whole_panels(seen);
  Product<Half> product;
  product.a_stride = queries.head_dim;
  product.b = {parts.turned, kBlock};
  product.depth = queries.head_dim;
  product.c_stride = kBlock;
  for (std::size_t j = 0; j < queries.group; j += kMaxRows) {
    product.a = queries.data + token * queries.token_stride + j * queries.head_dim;
    product.c = parts.logits + j * kBlock;
    multiply(product, std::min(kMaxRows, queries.group - j), computed.first, computed.last);
  }
  for (std::size_t j = 0; j < queries.group; ++j)
    finish_logits(rule, parts.bias, seen, computed, parts.logits + j * kBlock);
}

// log(sum over the group of exp(logit - log-sum-exp)), n columns. The largest is taken out first,
// so that a sum is at least 1 and nothing underflows.
HWY_INLINE void sum_group(const float* logits, const float* log_sum_exp, std::size_t group,
                          std::size_t n, float* out) {
  const FloatTag d;
  for (std::size_t c = 0; c < n; c += kLanes) {
    auto largest = hn::Set(d, kMinusInfinity);
    for (std::size_t j = 0; j < group; ++j) {
      const auto z = hn::LoadU(d, logits + j * kBlock + c);
      largest = hn::Max(largest, hn::Sub(z, hn::Set(d, log_sum_exp[j])));
    }
    auto sum = hn::Zero(d);
    for (std::size_t j = 0; j < group; ++j) {
      const auto z = hn::LoadU(d, logits + j * kBlock + c);
      const auto log_probability = hn::Sub(z, hn::Set(d, log_sum_exp[j]));
      sum = hn::Add(sum, exp_nonpositive(d, hn::Sub(log_probability, largest)));
    }
    const auto hidden = hn::Eq(largest, hn::Set(d, kMinusInfinity));
    const auto total = hn::Add(largest, hn::Log(d, sum));
    float lanes[kLanes];
    hn::StoreU(hn::IfThenElse(hidden, largest, total), d, lanes);
    std::copy_n(lanes, std::min(kLanes, n - c), out + c);
  }
}

void log_block_attention(const QueryView& queries, const Half* keys, std::size_t first,
                         const LogitRule& rule, const float* log_sum_exp, std::size_t stride,
                         float* log_attention, Scratch& scratch) {
  const BlockParts parts = make_parts(queries, scratch);
  EntryView entries;
  entries.keys = keys;
  entries.n = first + queries.n_tokens;
  for (std::size_t start = 0; start < stride; start += kBlock) {
    const std::size_t n = std::min(kBlock, stride - start);
    if (start < entries.n) {
      const Span columns{0, std::min(kBlock, entries.n - start)};
      transpose_keys(entries, queries.head_dim, start, whole_panels(columns), parts.turned);
    }
    for (std::size_t t = 0; t < queries.n_tokens; ++t) {
      float* out = log_attention + t * stride + start;
      const std::size_t n_visible = first + t + 1;
      const std::size_t seen = n_visible > start ? std::min(n, n_visible - start) : 0;
      std::fill(out + seen, out + n, kMinusInfinity);
      if (seen == 0) continue;
      token_logits(queries, t, parts, rule, {0, seen});
      sum_group(parts.logits, log_sum_exp + t * queries.group, queries.group, seen, out);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace precis
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace precis {

HWY_EXPORT(log_block_attention);

void log_block_attention(const QueryView& queries, const Half* keys, std::size_t first,
                         const LogitRule& rule, const float* log_sum_exp, std::size_t stride,
                         float* log_attention, Scratch& scratch) {
  HWY_DYNAMIC_DISPATCH(log_block_attention)
  (queries, keys, first, rule, log_sum_exp, stride, log_attention, scratch);
}

}  // namespace precis
#endif  // HWY_ONCE
