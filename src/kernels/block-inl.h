// Attention proceeds in blocks of 64 entries. This file prepares a block (transposes keys, converts
// to f32), computes its logits and turns them into probabilities. Included once per target.
#if defined(PRECIS_KERNELS_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PRECIS_KERNELS_BLOCK_INL_H_
#undef PRECIS_KERNELS_BLOCK_INL_H_
#else
#define PRECIS_KERNELS_BLOCK_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/attention.h"
#include "kernels/product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace precis {
namespace HWY_NAMESPACE {

constexpr std::size_t kBlock = 64;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Half-open range of entries of a block, relative to its start.
struct Span {
  std::size_t first = 0;
  std::size_t last = 0;
  bool empty() const { return first >= last; }
};

// What of a block [start, start + kBlock) a token may see.
inline Span seen_in_block(const Visible& visible, std::size_t start) {
  if (visible.last <= start || visible.first >= visible.last) return {};
  const std::size_t first = visible.first > start ? visible.first - start : 0;
  return {std::min(first, kBlock), std::min<std::size_t>(visible.last - start, kBlock)};
}

inline Span join(Span a, Span b) {
  if (a.empty()) return b;
  if (b.empty()) return a;
  return {std::min(a.first, b.first), std::max(a.last, b.last)};
}

inline Span seen_in_block(const Visible* visible, std::size_t n_tokens, std::size_t start) {
  Span all;
  for (std::size_t t = 0; t < n_tokens; ++t) all = join(all, seen_in_block(visible[t], start));
  return all;
}

// Logits are computed for whole panels, so that the sums of a row are split over lanes in the same
// way whatever else is computed.
inline Span whole_panels(Span span) {
  return {span.first / kPanel * kPanel, (span.last + kPanel - 1) / kPanel * kPanel};
}

// Working memory of one tile of queries; see make_workspace.
struct Workspace {
  float* queries;  // [tile rows, head_dim]
  float* logits;   // [kMaxRows, kBlock]
  float* keep;     // [kMaxRows]
  float* bias;     // [kBlock]
  Half* turned;    // [head_dim, kBlock] transposed keys
  float* keys;     // [kBlock / kPanel, head_dim, kPanel]
  float* values;   // [head_dim / kPanel rounded up, kBlock, kPanel]
};

// A block made ready: b factors of the two products.
template <class E>
struct Block {
  std::size_t start = 0;
  const float* bias = nullptr;  // [kBlock], -inf beyond the last entry
  Factor<E> keys;               // [head_dim, kBlock]
  Factor<E> values;             // [kBlock, head_dim]
  Upcoming own_values;          // this block's values
  Upcoming next_keys;           // the next block's keys
};

// 8 channels of 8 keys: from[i] is a row of keys, out [8 channels, kBlock] gets 8 columns.
#if HWY_TARGET == HWY_SCALAR
inline void transpose_8x8(const Half* const* from, std::size_t channel, Half* out) {
  for (std::size_t c = 0; c < 8; ++c)
    for (std::size_t i = 0; i < 8; ++i) out[c * kBlock + i] = from[i][channel + c];
}
#else
HWY_INLINE void transpose_8x8(const Half* const* from, std::size_t channel, Half* out) {
  const hn::Full128<std::uint16_t> d16;
  const hn::Full128<std::uint32_t> d32;
  const hn::Full128<std::uint64_t> d64;
  using V16 = hn::Vec<decltype(d16)>;
  V16 pair[8];  // [row pair][lower, upper half of the channels]
  HWY_UNROLL(8)
  for (std::size_t i = 0; i < 8; i += 2) {
    const auto a = hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(from[i] + channel));
    const auto b = hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(from[i + 1] + channel));
    pair[i] = hn::InterleaveLower(d16, a, b);
    pair[i + 1] = hn::InterleaveUpper(d16, a, b);
  }
  HWY_UNROLL(8)
  for (std::size_t half = 0; half < 2; ++half) {  // channels 4 * half ...
    const auto p01 = hn::BitCast(d32, pair[half]);
    const auto p23 = hn::BitCast(d32, pair[2 + half]);
    const auto p45 = hn::BitCast(d32, pair[4 + half]);
    const auto p67 = hn::BitCast(d32, pair[6 + half]);
    const auto low03 = hn::BitCast(d64, hn::InterleaveLower(d32, p01, p23));
    const auto high03 = hn::BitCast(d64, hn::InterleaveUpper(d32, p01, p23));
    const auto low47 = hn::BitCast(d64, hn::InterleaveLower(d32, p45, p67));
    const auto high47 = hn::BitCast(d64, hn::InterleaveUpper(d32, p45, p67));
    auto* to = reinterpret_cast<std::uint16_t*>(out + 4 * half * kBlock);
    hn::StoreU(hn::BitCast(d16, hn::InterleaveLower(d64, low03, low47)), d16, to);
    hn::StoreU(hn::BitCast(d16, hn::InterleaveUpper(d64, low03, low47)), d16, to + kBlock);
    hn::StoreU(hn::BitCast(d16, hn::InterleaveLower(d64, high03, high47)), d16, to + 2 * kBlock);
    hn::StoreU(hn::BitCast(d16, hn::InterleaveUpper(d64, high03, high47)), d16, to + 3 * kBlock);
  }
}
#endif

// Keys as [head_dim, kBlock] f16: with keys along lanes a logit needs no sum over lanes, and it
// costs 1.5 shuffles per 8 elements instead. Columns past the last entry repeat it and are masked
// later.
inline void transpose_keys(const EntryView& entries, std::size_t head_dim, std::size_t start,
                           Span columns, Half* turned) {
  for (std::size_t column = columns.first; column < columns.last; column += 8) {
    const Half* rows[8];
    for (std::size_t i = 0; i < 8; ++i)
      rows[i] = entries.keys + std::min(start + column + i, entries.n - 1) * head_dim;
    for (std::size_t channel = 0; channel < head_dim; channel += 8)
      transpose_8x8(rows, channel, turned + channel * kBlock + column);
  }
}

inline void fill_bias(const EntryView& entries, std::size_t start, float* bias) {
  const std::size_t n = std::min(kBlock, entries.n - start);
  for (std::size_t j = 0; j < n; ++j)
    bias[j] = entries.bias == nullptr ? 0.0f : entries.bias[start + j];
  std::fill(bias + n, bias + kBlock, kMinusInfinity);
}

// Few rows: a converted element would be used too seldom to be worth storing.
inline void prepare_block(const EntryView& entries, std::size_t head_dim, std::size_t start,
                          Span seen, bool with_values, const Workspace& work, Block<Half>& block) {
  fill_bias(entries, start, work.bias);
  transpose_keys(entries, head_dim, start, whole_panels(seen), work.turned);
  block.start = start;
  block.bias = work.bias;
  block.keys = {work.turned, kBlock};
  const std::size_t next = std::min(start + kBlock, entries.n);
  const std::size_t n_next = std::min(kBlock, entries.n - next);
  block.next_keys = {entries.keys + next * head_dim, n_next * head_dim};
  if (!with_values) return;
  block.values = {entries.values + start * head_dim, head_dim};
  block.own_values = {block.values.data, (next - start) * head_dim};
}

// Many rows: f32 in panels that the inner loop reads from first to last.
inline void prepare_block(const EntryView& entries, std::size_t head_dim, std::size_t start,
                          Span seen, bool with_values, const Workspace& work, Block<float>& block) {
  const FloatTag d;
  fill_bias(entries, start, work.bias);
  const Span columns = whole_panels(seen);
  transpose_keys(entries, head_dim, start, columns, work.turned);
  for (std::size_t column = columns.first; column < columns.last; column += kPanel) {
    float* panel = work.keys + column * head_dim;
    for (std::size_t c = 0; c < head_dim; ++c)
      for (std::size_t v = 0; v < kPanel; v += kLanes)
        hn::StoreU(load(d, work.turned + c * kBlock + column + v), d, panel + c * kPanel + v);
  }
  block.start = start;
  block.bias = work.bias;
  block.keys = {work.keys, head_dim * kPanel};
  if (!with_values) return;
  const hn::CappedTag<float, 8> d8;
  const std::size_t step = hn::Lanes(d8);
  for (std::size_t j = seen.first; j < seen.last; ++j) {
    const Half* row = entries.values + (start + j) * head_dim;
    for (std::size_t c = 0; c < head_dim; c += step) {
      float* to = work.values + c / kPanel * kPanel * kBlock + j * kPanel + c % kPanel;
      hn::StoreU(load(d8, row + c), d8, to);
    }
  }
  block.values = {work.values, kBlock * kPanel};
}

// Turns dot products into logits; those that the row may not see become -inf. Returns the largest.
HWY_INLINE float finish_logits(const LogitRule& rule, const float* bias, Span seen, Span computed,
                               float* z) {
  const FloatTag d;
  const bool capped = rule.softcap != 0.0f;
  const auto scale = hn::Set(d, capped ? rule.scale / rule.softcap : rule.scale);
  const auto cap = hn::Set(d, rule.softcap);
  for (std::size_t c = computed.first; c < computed.last; c += kLanes) {
    const auto x = hn::LoadU(d, z + c);
    const auto b = hn::LoadU(d, bias + c);
    const auto logit =
        capped ? hn::MulAdd(tanh(d, hn::Mul(x, scale)), cap, b) : hn::MulAdd(x, scale, b);
    hn::StoreU(logit, d, z + c);
  }
  std::fill(z + computed.first, z + seen.first, kMinusInfinity);
  std::fill(z + seen.last, z + computed.last, kMinusInfinity);
  auto largest = hn::Set(d, kMinusInfinity);
  for (std::size_t c = computed.first; c < computed.last; c += kLanes)
    largest = hn::Max(largest, hn::LoadU(d, z + c));
  return largest_lane(d, largest);
}

// z <- exp(z - max) for kVectors vectors from z on, added to sums in turn.
template <std::size_t kVectors>
HWY_INLINE void exponentiate_vectors(hn::Vec<FloatTag> max, float* z,
                                     hn::Vec<FloatTag> (&sums)[2]) {
  const FloatTag d;
  hn::Vec<FloatTag> p[kVectors];
  for (std::size_t v = 0; v < kVectors; ++v) p[v] = hn::Sub(hn::LoadU(d, z + v * kLanes), max);
  exp_nonpositive(d, p);
  for (std::size_t v = 0; v < kVectors; ++v) {
    sums[v % 2] = hn::Add(sums[v % 2], p[v]);
    hn::StoreU(p[v], d, z + v * kLanes);
  }
}

// z <- exp(z - max), returns the sum. Panels are an even number of vectors.
HWY_INLINE float exponentiate(float max, Span computed, float* z) {
  const FloatTag d;
  const auto m = hn::Set(d, max);
  hn::Vec<FloatTag> sums[2] = {hn::Zero(d), hn::Zero(d)};
  std::size_t c = computed.first;
  for (; c + 4 * kLanes <= computed.last; c += 4 * kLanes) exponentiate_vectors<4>(m, z + c, sums);
  for (; c < computed.last; c += 2 * kLanes) exponentiate_vectors<2>(m, z + c, sums);
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(sums[0], sums[1])));
}

// What exp is taken relative to. A row that has seen nothing has maximum -inf; relative to 0 its
// hidden logits give exp(-inf) = 0, where -inf - -inf would give NaN.
HWY_INLINE float reference_of(float max) { return max == kMinusInfinity ? 0.0f : max; }

// One step of the online softmax of n_rows <= kMaxRows rows: logits z [n_rows, kBlock], whose
// largest per row is given, become probabilities relative to the new maximum. keep [kMaxRows] gets
// the factors that bring earlier sums to that maximum.
HWY_INLINE void fold_rows(std::size_t n_rows, const float* largest, Span computed, float* z,
                          float* max, float* sum, float* keep) {
  const hn::CappedTag<float, kMaxRows> d;
  float change[kMaxRows] = {};
  float added[kMaxRows];
  for (std::size_t i = 0; i < n_rows; ++i) {
    const float new_max = std::max(max[i], largest[i]);
    change[i] = max[i] - reference_of(new_max);
    max[i] = new_max;
  }
  for (std::size_t i = 0; i < kMaxRows; i += hn::Lanes(d))
    hn::StoreU(exp_nonpositive(d, hn::LoadU(d, change + i)), d, keep + i);
  for (std::size_t i = 0; i < n_rows; ++i)
    added[i] = exponentiate(reference_of(max[i]), computed, z + i * kBlock);
  for (std::size_t i = 0; i < n_rows; ++i) sum[i] = std::fma(sum[i], keep[i], added[i]);
}

}  // namespace HWY_NAMESPACE
}  // namespace precis
HWY_AFTER_NAMESPACE();

#endif  // include guard
