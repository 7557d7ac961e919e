#include "model/matmul.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "base/error.h"
#include "kernels/expand.h"
#include "kernels/matmul.h"
#include "kernels/rows.h"
#include "model/thread_clock.h"

namespace precis {

// Tasks of the node that runs now. The last thread that leaves the node sets it back, before the
// barrier that ggml puts behind every node.
struct Matmul::Progress {
  std::atomic<std::size_t> next{0};
  std::atomic<int> n_left{0};

  void leave(int n_threads) {
    if (n_left.fetch_add(1) + 1 < n_threads) return;
    next = 0;
    n_left = 0;
  }
};

namespace {

// Rows of a matrix as they lie in the file.
struct RowFormat {
  ggml_type type;
  ggml_to_float_t to_float;
  std::size_t row_bytes;
};

void expand_f32(const MatrixSource& source, std::size_t row, std::size_t first, std::size_t n,
                float* out) {
  std::memcpy(out, static_cast<const float*>(source.data) + row * source.depth + first,
              n * sizeof(float));
}

// ggml's own function for f16 is portable code, 2.3 ns a weight; this one takes 0.15.
void expand_f16(const MatrixSource& source, std::size_t row, std::size_t first, std::size_t n,
                float* out) {
  convert_rows(static_cast<const Half*>(source.data) + row * source.depth + first, out, n);
}

const std::byte* block_at(const MatrixSource& source, std::size_t row, std::size_t first) {
  const auto& format = *static_cast<const RowFormat*>(source.format);
  return static_cast<const std::byte*>(source.data) + row * format.row_bytes +
         ggml_row_size(format.type, static_cast<std::int64_t>(first));
}

void expand_any(const MatrixSource& source, std::size_t row, std::size_t first, std::size_t n,
                float* out) {
  const auto& format = *static_cast<const RowFormat*>(source.format);
  format.to_float(block_at(source, row, first), out, static_cast<std::int64_t>(n));
}

template <BlockFormat kFormat>
void expand_fast(const MatrixSource& source, std::size_t row, std::size_t first, std::size_t n,
                 float* out) {
  expand_blocks(kFormat, block_at(source, row, first), n, out);
}

using ExpandRow = decltype(MatrixSource::expand);

ExpandRow expander_of(ggml_type type) {
  switch (type) {
    case GGML_TYPE_F32:
      return expand_f32;
    case GGML_TYPE_F16:
      return expand_f16;
    case GGML_TYPE_Q4_0:
      return expand_fast<BlockFormat::kQ4_0>;
    case GGML_TYPE_Q4_1:
      return expand_fast<BlockFormat::kQ4_1>;
    case GGML_TYPE_Q5_0:
      return expand_fast<BlockFormat::kQ5_0>;
    case GGML_TYPE_Q5_1:
      return expand_fast<BlockFormat::kQ5_1>;
    case GGML_TYPE_Q8_0:
      return expand_fast<BlockFormat::kQ8_0>;
    case GGML_TYPE_Q6_K:
      return expand_fast<BlockFormat::kQ6_K>;
    default:
      return expand_any;
  }
}

RowFormat format_of(const ggml_tensor* rows) {
  // A step of the kernel is a whole number of blocks.
  const auto block = static_cast<std::size_t>(ggml_blck_size(rows->type));
  PRECIS_CHECK(kMatmulStep % block == 0, ggml_type_name(rows->type), " ", block);
  return {rows->type, ggml_get_type_traits(rows->type)->to_float, rows->nb[1]};
}

MatrixSource source_in(const ggml_tensor* rows, const RowFormat& format) {
  MatrixSource source;
  source.expand = expander_of(rows->type);
  source.data = rows->data;
  source.format = &format;
  source.depth = static_cast<std::size_t>(rows->ne[0]);
  return source;
}

bool can_expand(const ggml_tensor* rows) {
  if (rows->type == GGML_TYPE_F32 || rows->type == GGML_TYPE_F16) return true;
  return ggml_get_type_traits(rows->type)->to_float != nullptr &&
         kMatmulStep % static_cast<std::size_t>(ggml_blck_size(rows->type)) == 0;
}

std::size_t divide_up(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

// How a product of n_tokens with all rows of a node is cut.
struct Cut {
  std::size_t rows = 0;
  std::size_t tokens = 0;
};

// The cut with the shortest estimated time. A task of few rows reads x too often (64 rows: 7 %
// slower than 256), one of few tokens expands the matrix too often (as much as multiplying it by
// about 10 tokens), and too few tasks leave threads without work.
Cut choose_cut(std::span<const std::size_t> n_rows, std::size_t n_tokens, std::size_t n_threads) {
  constexpr double kRowCost = 6.0;
  constexpr double kExpandTokens = 10.0;
  constexpr std::size_t kFewestTokens = 64;
  const std::size_t panel = matmul_panel_rows();
  Cut best;
  double best_time = 0;
  for (const std::size_t wanted : {256, 192, 160, 128, 112, 96, 80, 64, 48, 32, 16}) {
    const std::size_t rows = divide_up(wanted, panel) * panel;
    std::size_t n_row_tasks = 0;
    for (const std::size_t n : n_rows) n_row_tasks += divide_up(n, rows);
    for (std::size_t parts = 1; parts == 1 || n_tokens / parts >= kFewestTokens; parts *= 2) {
      const std::size_t tokens = divide_up(n_tokens, parts);
      const auto n_rounds =
          static_cast<double>(divide_up(n_row_tasks * divide_up(n_tokens, tokens), n_threads));
      const double time = n_rounds * (static_cast<double>(rows) + kRowCost) *
                          (static_cast<double>(tokens) + kExpandTokens);
      if (best.rows != 0 && time >= best_time) continue;
      best = {rows, tokens};
      best_time = time;
    }
  }
  return best;
}

constexpr std::size_t kMostMatrices = 4;  // q, k, v at most

// Sources: x [n_in, n_tokens], then the matrices. The results lie one after the other in dst.
template <class Progress>
void run_node(ggml_tensor* dst, int ith, int nth, void* data) noexcept {
  (void)ith;
  auto* progress = static_cast<Progress*>(data);
  const ggml_tensor* x = dst->src[0];
  const auto n_tokens = static_cast<std::size_t>(x->ne[1]);
  std::size_t n_rows[kMostMatrices];
  RowFormat formats[kMostMatrices];
  MatrixSource sources[kMostMatrices];
  float* results[kMostMatrices];
  std::size_t n_matrices = 0;
  float* at = static_cast<float*>(dst->data);
  for (; n_matrices < kMostMatrices && dst->src[n_matrices + 1] != nullptr; ++n_matrices) {
    const ggml_tensor* rows = dst->src[n_matrices + 1];
    n_rows[n_matrices] = static_cast<std::size_t>(rows->ne[1]);
    formats[n_matrices] = format_of(rows);
    sources[n_matrices] = source_in(rows, formats[n_matrices]);
    results[n_matrices] = at;
    at += n_rows[n_matrices] * n_tokens;
  }
  const Cut cut = choose_cut({n_rows, n_matrices}, n_tokens, static_cast<std::size_t>(nth));
  const std::size_t n_blocks = divide_up(n_tokens, cut.tokens);
  // At most 290 KiB a thread, kept as long as ggml keeps the thread.
  thread_local Scratch scratch;
  std::size_t first_task = 0;  // of matrix m
  std::size_t task = progress->next++;
  for (std::size_t m = 0; m < n_matrices; ++m) {
    const std::size_t n_tasks = divide_up(n_rows[m], cut.rows) * n_blocks;
    for (; task < first_task + n_tasks; task = progress->next++) {
      const std::size_t row = (task - first_task) / n_blocks * cut.rows;
      const std::size_t token = (task - first_task) % n_blocks * cut.tokens;
      multiply_transposed(static_cast<const float*>(x->data) + token * sources[m].depth,
                          std::min(cut.tokens, n_tokens - token), sources[m], row,
                          std::min(row + cut.rows, n_rows[m]), results[m] + token * n_rows[m] + row,
                          n_rows[m], scratch);
    }
    first_task += n_tasks;
  }
  progress->leave(nth);
}

}  // namespace

Matmul::Matmul() : progress_(std::make_unique<Progress>()) {}
Matmul::~Matmul() = default;

ggml_tensor* Matmul::rows_of(ggml_tensor* weight) const {
  const auto found = sources_.find(weight);
  return found == sources_.end() ? weight : found->second;
}

std::size_t Matmul::min_tokens(const ggml_tensor* weight) const {
  const auto found = min_tokens_.find({weight->type, weight->ne[0], weight->ne[1]});
  return found == min_tokens_.end() ? kNeverTokens : found->second;
}

ggml_tensor* Matmul::build_f32(ggml_context* context, std::span<ggml_tensor* const> sources,
                               ggml_tensor* x) const {
  PRECIS_CHECK(sources.size() <= kMostMatrices && ggml_is_contiguous(x), sources.size());
  ggml_tensor* arguments[1 + kMostMatrices] = {x};
  std::copy(sources.begin(), sources.end(), arguments + 1);
  std::int64_t n_rows = 0;
  for (const ggml_tensor* source : sources) n_rows += source->ne[1];
  const bool one = sources.size() == 1;
  return ggml_custom_4d(context, GGML_TYPE_F32, one ? n_rows : n_rows * x->ne[1],
                        one ? x->ne[1] : 1, 1, 1, arguments, static_cast<int>(1 + sources.size()),
                        run_node<Progress>, GGML_N_TASKS_MAX, progress_.get());
}

std::vector<ggml_tensor*> Matmul::build(ggml_context* context,
                                        std::span<ggml_tensor* const> weights,
                                        ggml_tensor* x) const {
  const auto n_tokens = static_cast<std::size_t>(x->ne[1]);
  std::vector<ggml_tensor*> results(weights.size());
  std::vector<ggml_tensor*> sources;
  std::vector<std::size_t> slots;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (n_tokens > 1 && n_tokens >= min_tokens(weights[i])) {
      sources.push_back(rows_of(weights[i]));
      slots.push_back(i);
    } else {
      results[i] = ggml_mul_mat(context, weights[i], x);
    }
  }
  if (sources.empty()) return results;
  ggml_tensor* all = build_f32(context, sources, x);
  if (sources.size() == 1) {
    results[slots[0]] = all;
    return results;
  }
  std::size_t offset = 0;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const std::int64_t n_rows = sources[i]->ne[1];
    const std::size_t row_bytes = static_cast<std::size_t>(n_rows) * sizeof(float);
    results[slots[i]] = ggml_view_2d(context, all, n_rows, x->ne[1], row_bytes, offset);
    offset += row_bytes * n_tokens;
  }
  return results;
}

// Times products with the first rows of the matrix: enough of them to divide over threads, few
// enough that all kinds of a model are measured within a fraction of a second.
std::size_t Matmul::measure(ggml_tensor* weight, Backend::Impl& backend) const {
  constexpr std::int64_t kMostTokens = 256;
  constexpr double kMostFlops = 0.1e9;
  // Every thread gets a panel or more.
  const auto fewest_rows = (static_cast<std::int64_t>(16 * backend.n_threads) + 63) / 64 * 64;
  const auto rows_for_flops = static_cast<std::int64_t>(
      kMostFlops / (2.0 * static_cast<double>(weight->ne[0]) * kMostTokens));
  // Repacked matrices come in groups of 8 or 16 rows.
  const std::int64_t n_rows =
      std::min(weight->ne[1], std::max(fewest_rows, rows_for_flops / 64 * 64));
  const auto first_rows = [n_rows](ggml_tensor tensor) {
    tensor.ne[1] = n_rows;
    tensor.nb[2] = tensor.nb[1] * static_cast<std::size_t>(n_rows);
    tensor.nb[3] = tensor.nb[2];
    return tensor;
  };
  ggml_tensor for_ggml = first_rows(*weight);
  ggml_tensor for_f32 = first_rows(*rows_of(weight));
  ggml_gallocr_ptr allocator(ggml_gallocr_new(backend.plain_buffer_type()));
  return choose_min_tokens([&](MatmulWay way, std::size_t n_tokens) {
    constexpr std::size_t kNodes = 8;
    ggml_context_ptr context(
        ggml_init({kNodes * ggml_tensor_overhead() + ggml_graph_overhead_custom(kNodes, false),
                   nullptr, true}));
    PRECIS_CHECK(context);
    ggml_tensor* x = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, weight->ne[0],
                                        static_cast<std::int64_t>(n_tokens));
    ggml_set_input(x);
    ggml_tensor* source = &for_f32;
    ggml_tensor* y = way == MatmulWay::kGgml ? ggml_mul_mat(context.get(), &for_ggml, x)
                                             : build_f32(context.get(), {&source, 1}, x);
    ggml_cgraph* graph = ggml_new_graph_custom(context.get(), kNodes, false);
    ggml_build_forward_expand(graph, y);
    if (!ggml_gallocr_alloc_graph(allocator.get(), graph))
      throw Error(ErrorCode::kOutOfMemory, "no memory to measure matrix products");
    auto* values = static_cast<float*>(x->data);
    for (std::int64_t i = 0; i < ggml_nelements(x); ++i)
      values[i] = static_cast<float>(i % 17) / 8.0f - 1.0f;
    const double start = thread_seconds();
    backend.compute(graph, nullptr);
    return thread_seconds() - start;
  });
}

void Matmul::choose(MatmulMode mode, std::span<ggml_tensor* const> weights,
                    Backend::Impl& backend) {
  const auto start = std::chrono::steady_clock::now();
  report_ = {};
  report_.mode = mode;
  min_tokens_.clear();
  for (ggml_tensor* weight : weights) {
    const KindKey key{weight->type, weight->ne[0], weight->ne[1]};
    if (min_tokens_.contains(key)) continue;
    std::size_t least = kNeverTokens;
    if (mode != MatmulMode::kGgml && can_expand(rows_of(weight)))
      least = mode == MatmulMode::kSgemm ? 2 : measure(weight, backend);
    min_tokens_[key] = least;
    report_.kinds.push_back({ggml_type_name(weight->type), static_cast<std::size_t>(weight->ne[0]),
                             static_cast<std::size_t>(weight->ne[1]), least});
  }
  report_.measuring_ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace precis
