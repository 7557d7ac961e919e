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

// Tokens whose rows are multiplied together: with group 3 two of them halve the reads of keys.
inline std::size_t tokens_per_product(std::size_t group) {
  return std::max<std::size_t>(1, kGroupRows / group);
}

// Working memory of a call.
struct BlockParts {
  Workspace work;  // bias, turned and keys only
  float* queries;  // [tokens_per_product * group, head_dim]
  float* logits;   // [tokens_per_product * group rounded up to kMaxRows, kBlock]
};

inline BlockParts make_parts(const QueryView& queries, Scratch& scratch) {
  const std::size_t d = queries.head_dim;
  const std::size_t most_rows = tokens_per_product(queries.group) * queries.group;
  const std::size_t rows = (most_rows + kMaxRows - 1) / kMaxRows * kMaxRows;
  const std::size_t n_turned = d * kBlock / 2;  // two f16 in a float
  float* at = scratch.floats(n_turned + (d + rows + 1) * kBlock + rows * d);
  BlockParts parts = {};
  parts.work.turned = reinterpret_cast<Half*>(at);
  parts.work.keys = at += n_turned;
  parts.logits = at += d * kBlock;
  parts.work.bias = at += rows * kBlock;
  parts.queries = at + kBlock;
  return parts;
}

// Logits of n_tokens tokens from `token` on over the columns of a block of keys, [n_tokens, group,
// kBlock]; the first of them sees n_seen entries of the block, each later one one more.
HWY_INLINE void block_logits(const QueryView& queries, std::size_t token, std::size_t n_tokens,
                             const Block<float>& block, const BlockParts& parts,
                             const LogitRule& rule, std::size_t n_seen) {
  const std::size_t width = queries.group * queries.head_dim;
  const std::size_t n_rows = n_tokens * queries.group;
  for (std::size_t t = 0; t < n_tokens; ++t)
    std::copy_n(queries.data + (token + t) * queries.token_stride, width,
                parts.queries + t * width);
  const Span computed = whole_panels({0, std::min(kBlock, n_seen + n_tokens - 1)});
  Product<float> product;
  product.a_stride = queries.head_dim;
  product.b = block.keys;
  product.depth = queries.head_dim;
  product.c_stride = kBlock;
  for (std::size_t j = 0; j < n_rows; j += kMaxRows) {
    product.a = parts.queries + j * queries.head_dim;
    product.c = parts.logits + j * kBlock;
    multiply(product, std::min(kMaxRows, n_rows - j), computed.first, computed.last);
  }
  for (std::size_t j = 0; j < n_rows; ++j) {
    const Span seen{0, std::min(kBlock, n_seen + j / queries.group)};
    finish_logits(rule, block.bias, seen, computed, parts.logits + j * kBlock);
  }
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
  Block<float> block;
  for (std::size_t start = 0; start < stride; start += kBlock) {
    const std::size_t n = std::min(kBlock, stride - start);
    // Tokens before this one see nothing of the block.
    const std::size_t blind = std::min(queries.n_tokens, start > first ? start - first : 0);
    for (std::size_t t = 0; t < blind; ++t)
      std::fill_n(log_attention + t * stride + start, n, kMinusInfinity);
    if (blind == queries.n_tokens) continue;
    const Span columns{0, std::min(kBlock, entries.n - start)};
    prepare_block(entries, queries.head_dim, start, columns, false, parts.work, block);
    const std::size_t step = tokens_per_product(queries.group);
    for (std::size_t t = blind; t < queries.n_tokens; t += step) {
      const std::size_t n_tokens = std::min(step, queries.n_tokens - t);
      const std::size_t n_seen = first + t + 1 - start;
      block_logits(queries, t, n_tokens, block, parts, rule, n_seen);
      for (std::size_t i = 0; i < n_tokens; ++i) {
        float* out = log_attention + (t + i) * stride + start;
        const std::size_t seen = std::min(n, n_seen + i);
        sum_group(parts.logits + i * queries.group * kBlock, log_sum_exp + (t + i) * queries.group,
                  queries.group, seen, out);
        std::fill(out + seen, out + n, kMinusInfinity);
      }
    }
  }
}

// The columns' largest logit - log-sum-exp of n_rows rows, into out.
HWY_INLINE void raise_columns(const float* logits, const float* log_sum_exp, std::size_t n_rows,
                              std::size_t n, float* out) {
  const FloatTag d;
  for (std::size_t c = 0; c < n; c += kLanes) {
    auto largest = hn::Set(d, kMinusInfinity);
    for (std::size_t j = 0; j < n_rows; ++j) {
      const auto z = hn::LoadU(d, logits + j * kBlock + c);
      largest = hn::Max(largest, hn::Sub(z, hn::Set(d, log_sum_exp[j])));
    }
    float lanes[kLanes];
    hn::StoreU(largest, d, lanes);
    for (std::size_t i = 0; i < std::min(kLanes, n - c); ++i)
      out[c + i] = std::max(out[c + i], lanes[i]);
  }
}

void raise_log_peaks(const QueryView& queries, const EntryView& entries, const LogitRule& rule,
                     const float* log_sum_exp, float* log_peaks, Scratch& scratch) {
  const BlockParts parts = make_parts(queries, scratch);
  const std::size_t step = tokens_per_product(queries.group);
  Block<float> block;
  for (std::size_t start = 0; start < entries.n; start += kBlock) {
    const std::size_t n = std::min(kBlock, entries.n - start);
    prepare_block(entries, queries.head_dim, start, {0, n}, false, parts.work, block);
    for (std::size_t t = 0; t < queries.n_tokens; t += step) {
      const std::size_t n_tokens = std::min(step, queries.n_tokens - t);
      block_logits(queries, t, n_tokens, block, parts, rule, kBlock);
      raise_columns(parts.logits, log_sum_exp + t * queries.group, n_tokens * queries.group, n,
                    log_peaks + start);
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

HWY_EXPORT(raise_log_peaks);

void raise_log_peaks(const QueryView& queries, const EntryView& entries, const LogitRule& rule,
                     const float* log_sum_exp, float* log_peaks, Scratch& scratch) {
  HWY_DYNAMIC_DISPATCH(raise_log_peaks)
  (queries, entries, rule, log_sum_exp, log_peaks, scratch);
}

}  // namespace precis
#endif  // HWY_ONCE
