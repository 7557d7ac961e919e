#include "model/column_nodes.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <random>
#include <vector>

#include "base/error.h"
#include "model/buffer_choice.h"

namespace precis {
namespace {

// Rows that a thread takes at a time: 64 rows by 8 columns of 896 weights take some 40 us, so that
// threads end within that of each other.
constexpr std::size_t kRowsAtOnce = 64;

std::size_t size_of(const ggml_tensor* t, int dim) { return static_cast<std::size_t>(t->ne[dim]); }

struct FormatType {
  ColumnFormat format;
  ggml_type type;
};
constexpr FormatType kTypes[] = {{ColumnFormat::kQ5_0, GGML_TYPE_Q5_0},
                                 {ColumnFormat::kQ8_0, GGML_TYPE_Q8_0},
                                 {ColumnFormat::kQ4_K, GGML_TYPE_Q4_K},
                                 {ColumnFormat::kQ6_K, GGML_TYPE_Q6_K}};

constexpr std::size_t kWidth = 512;
constexpr std::size_t kRows = 24;  // a whole number of the rows that are repacked together
constexpr std::size_t kColumns = 3;

std::vector<float> random_values(std::size_t n) {
  std::mt19937 draw(17);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& value : values) value = normal(draw);
  return values;
}

// ggml's products of single columns with a weight in memory of that type, [kColumns, kRows].
std::vector<float> single_products(Backend::Impl& backend, ggml_backend_buffer_type_t buffer_type,
                                   ggml_type type, const std::vector<std::byte>& rows,
                                   const std::vector<float>& x) {
  ggml_context_ptr context(ggml_init(
      {8 * ggml_tensor_overhead() + ggml_graph_overhead_custom(8, false), nullptr, true}));
  PRECIS_CHECK(context);
  ggml_tensor* weight = ggml_new_tensor_2d(context.get(), type, kWidth, kRows);
  ggml_backend_buffer_ptr buffer(
      ggml_backend_alloc_ctx_tensors_from_buft(context.get(), buffer_type));
  if (!buffer) throw Error(ErrorCode::kOutOfMemory, "no memory to try out products");
  ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
  ggml_backend_tensor_set(weight, rows.data(), 0, rows.size());
  ggml_tensor* one = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, kWidth, 1);
  ggml_set_input(one);
  ggml_tensor* y = ggml_mul_mat(context.get(), weight, one);
  ggml_set_output(y);
  ggml_cgraph* graph = ggml_new_graph_custom(context.get(), 8, false);
  ggml_build_forward_expand(graph, y);
  ggml_gallocr_ptr allocator(ggml_gallocr_new(backend.plain_buffer_type()));
  if (!ggml_gallocr_alloc_graph(allocator.get(), graph))
    throw Error(ErrorCode::kOutOfMemory, "no memory to try out products");
  std::vector<float> out(kColumns * kRows);
  for (std::size_t c = 0; c < kColumns; ++c) {
    std::memcpy(one->data, x.data() + c * kWidth, kWidth * sizeof(float));
    backend.compute(graph, nullptr);
    std::memcpy(out.data() + c * kRows, y->data, kRows * sizeof(float));
  }
  return out;
}

// In which kinds of memory of the backend a weight has the bits of our kernel.
void try_format(Backend::Impl& backend, const FormatType& t, ColumnNodes::Formats& formats) {
  const std::vector<float> x = random_values(kWidth * kColumns);
  const std::vector<float> weights = random_values(kWidth * kRows);
  std::vector<std::byte> rows(kRows * ggml_row_size(t.type, kWidth));
  ggml_quantize_chunk(t.type, weights.data(), rows.data(), 0, kRows, kWidth, nullptr);
  const std::size_t block = column_block(t.format);
  std::vector<std::byte> storage(quantised_columns_bytes(block, kWidth, kColumns));
  std::vector<float> ours(kRows * kColumns);
  quantise_columns(block, x.data(), kWidth, kColumns, 0, kWidth / block, storage.data());
  multiply_columns(t.format, rows.data(), kWidth, 0, kRows, storage.data(), kColumns, ours.data(),
                   kRows);
  const auto fastest = find_buffer_type(backend, t.type, kWidth, kRows, WeightUse::kMatrix);
  for (const bool is_repacked : {false, true}) {
    const ggml_backend_buffer_type_t plain = backend.plain_buffer_type();
    if (is_repacked && (!fastest || *fastest == plain)) continue;
    const auto ggmls = single_products(backend, is_repacked ? *fastest : plain, t.type, rows, x);
    if (std::memcmp(ggmls.data(), ours.data(), ours.size() * sizeof(float)) == 0)
      formats.push_back({t.format, is_repacked});
  }
}

}  // namespace

ColumnNodes::Formats ColumnNodes::find_formats(Backend::Impl& backend) {
  Formats formats;
  if (!column_products_available()) return formats;
  for (const FormatType& t : kTypes) try_format(backend, t, formats);
  return formats;
}

ggml_tensor* ColumnNodes::multiply(ggml_context* context, const ggml_tensor* weight,
                                   const ggml_tensor* rows, ggml_tensor* x) {
  if (weight->buffer == nullptr || rows->type != weight->type) return nullptr;
  // Repacked weights lie in memory of another kind.
  const bool is_repacked = !ggml_backend_buffer_is_host(weight->buffer);
  const auto* known = std::find_if(std::begin(kTypes), std::end(kTypes), [&](const FormatType& t) {
    return t.type == weight->type &&
           std::any_of(formats_.begin(), formats_.end(), [&](const Format& f) {
             return f.format == t.format && f.is_repacked == is_repacked;
           });
  });
  if (known == std::end(kTypes) || (is_repacked && rows == weight)) return nullptr;
  const std::size_t block = column_block(known->format);
  Quantised& quantised = quantised_[block == quantised_[0].block ? 0 : 1];
  PRECIS_CHECK(quantised.block == block, block);
  if (quantised.source != x) {
    const std::size_t bytes = quantised_columns_bytes(block, size_of(x, 0), size_of(x, 1));
    quantised.source = x;
    quantised.columns =
        ggml_custom_4d(context, GGML_TYPE_I8, static_cast<std::int64_t>(bytes), 1, 1, 1,
                       &quantised.source, 1, quantise_node, GGML_N_TASKS_MAX, &quantised.block);
  }
  Product& product = products_.emplace_back();
  product.rows = rows;
  product.format = known->format;
  return ggml_custom_4d(context, GGML_TYPE_F32, weight->ne[1], x->ne[1], 1, 1, &quantised.columns,
                        1, multiply_node, GGML_N_TASKS_MAX, &product);
}

void ColumnNodes::start() {
  for (Product& product : products_) product.next_row.store(0, std::memory_order_relaxed);
}

void ColumnNodes::quantise_node(ggml_tensor* dst, int ith, int nth, void* data) noexcept {
  const ggml_tensor* x = dst->src[0];
  const std::size_t block = *static_cast<const std::size_t*>(data);
  const std::size_t n_blocks = size_of(x, 0) / block;
  const auto thread = static_cast<std::size_t>(ith);
  const auto n_threads = static_cast<std::size_t>(nth);
  quantise_columns(block, static_cast<const float*>(x->data), size_of(x, 0), size_of(x, 1),
                   n_blocks * thread / n_threads, n_blocks * (thread + 1) / n_threads,
                   static_cast<std::byte*>(dst->data));
}

void ColumnNodes::multiply_node(ggml_tensor* dst, int, int, void* data) noexcept {
  auto* product = static_cast<Product*>(data);
  const ggml_tensor* rows = product->rows;
  const std::size_t n_rows = size_of(rows, 1);
  for (std::size_t first = product->next_row.fetch_add(kRowsAtOnce); first < n_rows;
       first = product->next_row.fetch_add(kRowsAtOnce))
    multiply_columns(product->format, static_cast<const std::byte*>(rows->data), size_of(rows, 0),
                     first, std::min(n_rows, first + kRowsAtOnce),
                     static_cast<const std::byte*>(dst->src[0]->data), size_of(dst, 1),
                     static_cast<float*>(dst->data), n_rows);
}

}  // namespace precis
