#include "kernels/attention.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <numeric>

#include "kernels/kept_logits.h"
#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/block-inl.h"

HWY_BEFORE_NAMESPACE();
namespace precis {
namespace HWY_NAMESPACE {

// Rows that share a converted block. 96 makes conversion cost about 5 % of the products, and
// queries, output and block of head_dim 256 still fit an L2 cache of 512 KiB.
constexpr std::size_t kTileRows = 96;

// Some tokens of a call.
struct Tile {
  const Visible* visible = nullptr;  // [n_tokens]
  std::size_t n_tokens = 0;
  std::size_t group = 1;
  std::size_t head_dim = 0;
  std::size_t n_rows() const { return n_tokens * group; }
};

inline std::size_t tokens_per_tile(std::size_t group) {
  return std::max<std::size_t>(1, kTileRows / group);
}

inline Workspace make_workspace(const QueryView& queries, Scratch& scratch) {
  const std::size_t d = queries.head_dim;
  const std::size_t most_rows =
      queries.group * std::min(tokens_per_tile(queries.group), queries.n_tokens);
  const std::size_t rows = (most_rows + 15) / 16 * 16;  // keeps every part aligned to 64 bytes
  const std::size_t value_columns = (d + kPanel - 1) / kPanel * kPanel;
  const std::size_t sizes[] = {
      rows * d,                // queries
      kMaxRows * kBlock,       // logits
      16,                      // keep
      kBlock,                  // bias
      d * kBlock / 2,          // turned: two f16 in a float
      d * kBlock,              // keys
      value_columns * kBlock,  // values
  };
  constexpr std::size_t kParts = std::size(sizes);
  float* at = scratch.floats(std::accumulate(sizes, sizes + kParts, std::size_t{0}));
  float* parts[kParts];
  for (std::size_t i = 0; i < kParts; ++i) {
    parts[i] = at;
    at += sizes[i];
  }
  return {parts[0], parts[1], parts[2], parts[3], reinterpret_cast<Half*>(parts[4]),
          parts[5], parts[6]};
}

inline void gather_queries(const QueryView& queries, std::size_t first_token, const Tile& tile,
                           float* packed) {
  const std::size_t width = tile.group * tile.head_dim;
  for (std::size_t t = 0; t < tile.n_tokens; ++t) {
    const float* from = queries.data + (first_token + t) * queries.token_stride;
    std::copy(from, from + width, packed + t * width);
  }
}

// What some token among those of rows [first, first + n) sees of a block.
inline Span seen_by_rows(const Tile& tile, std::size_t start, std::size_t first, std::size_t n) {
  const std::size_t first_token = first / tile.group;
  const std::size_t last_token = (first + n - 1) / tile.group;
  return seen_in_block(tile.visible + first_token, last_token - first_token + 1, start);
}

// Logits of rows [first_row, first_row + n_rows) over a block, [n_rows, kBlock] in work.logits;
// largest [n_rows] gets the largest of each row. Returns the columns computed; hidden ones are
// -inf.
template <class E>
HWY_INLINE Span score_rows(const Tile& tile, const Workspace& work, const Block<E>& block,
                           const LogitRule& rule, std::size_t first_row, std::size_t n_rows,
                           Span seen, float* largest) {
  const Span computed = whole_panels(seen);
  Product<E> product;
  product.a = work.queries + first_row * tile.head_dim;
  product.a_stride = tile.head_dim;
  product.b = block.keys;
  product.depth = tile.head_dim;
  product.c = work.logits;
  product.c_stride = kBlock;
  product.upcoming = block.own_values;
  multiply(product, n_rows, computed.first, computed.last);
  for (std::size_t i = 0; i < n_rows; ++i) {
    Span own = seen_in_block(tile.visible[(first_row + i) / tile.group], block.start);
    if (own.empty()) own = {computed.last, computed.last};
    largest[i] = finish_logits(rule, block.bias, own, computed, work.logits + i * kBlock);
  }
  return computed;
}

// keep(seen) is called while work.logits holds the logits.
template <class E, class Keep>
HWY_INLINE void attend_rows(const Tile& tile, const Workspace& work, const Block<E>& block,
                            const LogitRule& rule, std::size_t first_row, std::size_t n_rows,
                            const StateView& state, const Keep& keep) {
  const Span seen = seen_by_rows(tile, block.start, first_row, n_rows);
  if (seen.empty()) return;
  float largest[kMaxRows];
  const Span computed = score_rows(tile, work, block, rule, first_row, n_rows, seen, largest);
  keep(seen);
  fold_rows(n_rows, largest, computed, work.logits, state.max + first_row, state.sum + first_row,
            work.keep);
  if (block.values.data == nullptr) return;
  Product<E> product;
  product.a = work.logits + seen.first;
  product.a_stride = kBlock;
  product.b = block.values.from_row(seen.first);
  product.depth = seen.last - seen.first;
  product.keep = work.keep;
  product.c = state.out + first_row * tile.head_dim;
  product.c_stride = tile.head_dim;
  product.upcoming = block.next_keys;
  multiply(product, n_rows, 0, tile.head_dim);
}

// Calls visit(block, first_row, n_rows) for every block that some token sees and every group of
// rows.
template <class E, class Visit>
HWY_INLINE void for_each_block(const Tile& tile, const EntryView& entries, const Workspace& work,
                               bool with_values, const Visit& visit) {
  std::size_t begin = entries.n;
  std::size_t end = 0;
  for (std::size_t t = 0; t < tile.n_tokens; ++t) {
    if (tile.visible[t].first >= tile.visible[t].last) continue;
    begin = std::min<std::size_t>(begin, tile.visible[t].first);
    end = std::max<std::size_t>(end, tile.visible[t].last);
  }
  // Groups of equal size: one row alone is too few independent sums to keep the units busy.
  const std::size_t most = sizeof(E) == sizeof(Half) ? kMaxRows : kGroupRows;
  const std::size_t n_groups = (tile.n_rows() + most - 1) / most;
  Block<E> block;
  for (std::size_t start = begin / kBlock * kBlock; start < end; start += kBlock) {
    const Span seen = seen_in_block(tile.visible, tile.n_tokens, start);
    if (seen.empty()) continue;
    prepare_block(entries, tile.head_dim, start, seen, with_values, work, block);
    for (std::size_t i = 0; i < n_groups; ++i) {
      const std::size_t first_row = tile.n_rows() * i / n_groups;
      visit(block, first_row, tile.n_rows() * (i + 1) / n_groups - first_row);
    }
  }
}

// Calls visit(tile, first_token, work) for the tiles of a call, their queries packed in work.
template <class Visit>
HWY_INLINE void for_each_tile(const QueryView& queries, const Visible* visible, Scratch& scratch,
                              const Visit& visit) {
  const Workspace work = make_workspace(queries, scratch);
  const std::size_t step = tokens_per_tile(queries.group);
  for (std::size_t t = 0; t < queries.n_tokens; t += step) {
    const Tile tile{visible + t, std::min(step, queries.n_tokens - t), queries.group,
                    queries.head_dim};
    gather_queries(queries, t, tile, work.queries);
    visit(tile, t, work);
  }
}

// Few rows read f16 as they go, many share f32.
template <class Visit>
HWY_INLINE void visit_blocks(const Tile& tile, const EntryView& entries, const Workspace& work,
                             bool with_values, const Visit& visit) {
  if (tile.n_rows() <= kMaxRows)
    for_each_block<Half>(tile, entries, work, with_values, visit);
  else
    for_each_block<float>(tile, entries, work, with_values, visit);
}

struct AttendVisitor {
  const Tile& tile;
  const Workspace& work;
  const LogitRule& rule;
  const StateView& state;
  template <class E>
  void operator()(const Block<E>& block, std::size_t first_row, std::size_t n_rows) const {
    attend_rows(tile, work, block, rule, first_row, n_rows, state, [](Span) {});
  }
};

struct KeepingVisitor {
  const Tile& tile;
  const Workspace& work;
  const LogitRule& rule;
  const StateView& state;
  float* logits;  // of the tile's rows
  std::size_t stride;
  template <class E>
  void operator()(const Block<E>& block, std::size_t first_row, std::size_t n_rows) const {
    attend_rows(tile, work, block, rule, first_row, n_rows, state, [&](Span seen) {
      for (std::size_t i = 0; i < n_rows; ++i)
        std::copy(work.logits + i * kBlock + seen.first, work.logits + i * kBlock + seen.last,
                  logits + (first_row + i) * stride + block.start + seen.first);
    });
  }
};

// visitor(tile, work, first_row, state) is what handles the blocks of a tile.
template <class MakeVisitor>
void attend_tiles(const QueryView& queries, const EntryView& entries, const Visible* visible,
                  const StateView& state, Scratch& scratch, const MakeVisitor& visitor) {
  if (queries.n_tokens == 0 || entries.n == 0) return;
  for_each_tile(
      queries, visible, scratch, [&](const Tile& tile, std::size_t first, const Workspace& work) {
        const std::size_t row = first * queries.group;
        const StateView part{state.max + row, state.sum + row, state.out + row * queries.head_dim};
        visit_blocks(tile, entries, work, entries.values != nullptr,
                     visitor(tile, work, row, part));
      });
}

void attend(const QueryView& queries, const EntryView& entries, const LogitRule& rule,
            const Visible* visible, const StateView& state, Scratch& scratch) {
  attend_tiles(queries, entries, visible, state, scratch,
               [&](const Tile& tile, const Workspace& work, std::size_t, const StateView& part) {
                 return AttendVisitor{tile, work, rule, part};
               });
}

void attend_keeping_logits(const QueryView& queries, const EntryView& entries,
                           const LogitRule& rule, const Visible* visible, const StateView& state,
                           float* logits, std::size_t stride, Scratch& scratch) {
  attend_tiles(
      queries, entries, visible, state, scratch,
      [&](const Tile& tile, const Workspace& work, std::size_t row, const StateView& part) {
        return KeepingVisitor{tile, work, rule, part, logits + row * stride, stride};
      });
}

void logits_to_attention(float* logits, std::size_t n, float log_sum_exp) {
  const float reference = reference_of(log_sum_exp);
  const std::size_t whole = n / kPanel * kPanel;
  exponentiate(reference, {0, whole}, logits);
  if (whole == n) return;
  float rest[kPanel];
  std::fill(rest, rest + kPanel, kMinusInfinity);
  std::copy(logits + whole, logits + n, rest);
  exponentiate(reference, {0, kPanel}, rest);
  std::copy(rest, rest + (n - whole), logits + whole);
}

struct MassVisitor {
  const Tile& tile;
  const Workspace& work;
  const LogitRule& rule;
  const float* log_sum_exp;
  float* mass;
  template <class E>
  void operator()(const Block<E>& block, std::size_t first_row, std::size_t n_rows) const {
    const Span seen = seen_by_rows(tile, block.start, first_row, n_rows);
    if (seen.empty()) return;
    float largest[kMaxRows];
    const Span computed = score_rows(tile, work, block, rule, first_row, n_rows, seen, largest);
    for (std::size_t i = 0; i < n_rows; ++i) {
      if (largest[i] == kMinusInfinity) continue;
      float* p = work.logits + i * kBlock;
      exponentiate(log_sum_exp[first_row + i], computed, p);
      for (std::size_t j = seen.first; j < seen.last; ++j) mass[block.start + j] += p[j];
    }
  }
};

void add_attention_mass(const QueryView& queries, const EntryView& entries, const LogitRule& rule,
                        const Visible* visible, const float* log_sum_exp, float* mass,
                        Scratch& scratch) {
  if (queries.n_tokens == 0 || entries.n == 0) return;
  for_each_tile(
      queries, visible, scratch, [&](const Tile& tile, std::size_t first, const Workspace& work) {
        const float* sums = log_sum_exp + first * queries.group;
        visit_blocks(tile, entries, work, false, MassVisitor{tile, work, rule, sums, mass});
      });
}

const char* instruction_set_name() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace precis
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace precis {

HWY_EXPORT(attend);
HWY_EXPORT(attend_keeping_logits);
HWY_EXPORT(logits_to_attention);
HWY_EXPORT(add_attention_mass);
HWY_EXPORT(instruction_set_name);

void attend(const QueryView& queries, const EntryView& entries, const LogitRule& rule,
            const Visible* visible, const StateView& state, Scratch& scratch) {
  HWY_DYNAMIC_DISPATCH(attend)(queries, entries, rule, visible, state, scratch);
}

void add_attention_mass(const QueryView& queries, const EntryView& entries, const LogitRule& rule,
                        const Visible* visible, const float* log_sum_exp, float* mass,
                        Scratch& scratch) {
  HWY_DYNAMIC_DISPATCH(add_attention_mass)
  (queries, entries, rule, visible, log_sum_exp, mass, scratch);
}

void attend_keeping_logits(const QueryView& queries, const EntryView& entries,
                           const LogitRule& rule, const Visible* visible, const StateView& state,
                           float* logits, std::size_t stride, Scratch& scratch) {
  HWY_DYNAMIC_DISPATCH(attend_keeping_logits)
  (queries, entries, rule, visible, state, logits, stride, scratch);
}

void logits_to_attention(float* logits, std::size_t n, float log_sum_exp) {
  HWY_DYNAMIC_DISPATCH(logits_to_attention)(logits, n, log_sum_exp);
}

const char* instruction_set_name() { return HWY_DYNAMIC_DISPATCH(instruction_set_name)(); }

}  // namespace precis
#endif  // HWY_ONCE
