#include "model/column_nodes.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <random>
#include <vector>

#include "base/error.h"

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
                                 {ColumnFormat::kQ6_K, GGML_TYPE_Q6_K}};

bool gives_same_bits(Backend::Impl& backend, ggml_type type, ColumnFormat format) {
  constexpr std::size_t kWidth = 512;
  constexpr std::size_t kRows = 24;
  constexpr std::size_t kColumns = 3;
  std::mt19937 draw(17);
  std::normal_distribution<float> normal;
  std::vector<float> x(kWidth * kColumns);
  std::vector<float> rows(kWidth * kRows);
  for (float& value : x) value = normal(draw);
  for (float& value : rows) value = normal(draw);
  const std::size_t bytes = kRows * ggml_row_size(type, kWidth);
  ggml_context_ptr context(
      ggml_init({bytes + 8 * (ggml_tensor_overhead() + 64) + ggml_graph_overhead_custom(8, false) +
                     2 * kColumns * (kWidth + kRows) * sizeof(float),
                 nullptr, false}));
  PRECIS_CHECK(context);
  ggml_tensor* weight = ggml_new_tensor_2d(context.get(), type, kWidth, kRows);
  ggml_quantize_chunk(type, rows.data(), weight->data, 0, kRows, kWidth, nullptr);
  ggml_tensor* one = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, kWidth, 1);
  ggml_tensor* y = ggml_mul_mat(context.get(), weight, one);
  ggml_cgraph* graph = ggml_new_graph_custom(context.get(), 8, false);
  ggml_build_forward_expand(graph, y);
  const std::size_t block = column_block(format);
  std::vector<std::byte> storage(quantised_columns_bytes(block, kWidth, kColumns));
  std::vector<float> out(kRows * kColumns);
  quantise_columns(block, x.data(), kWidth, kColumns, 0, kWidth / block, storage.data());
  multiply_columns(format, static_cast<const std::byte*>(weight->data), kWidth, 0, kRows,
                   storage.data(), kColumns, out.data(), kRows);
  for (std::size_t c = 0; c < kColumns; ++c) {
    std::memcpy(one->data, x.data() + c * kWidth, kWidth * sizeof(float));
    backend.compute(graph, nullptr);
    if (std::memcmp(y->data, out.data() + c * kRows, kRows * sizeof(float)) != 0) return false;
  }
  return true;
}

}  // namespace

ColumnNodes::Formats ColumnNodes::find_formats(Backend::Impl& backend) {
  Formats formats;
  if (!column_products_available()) return formats;
  for (const FormatType& t : kTypes)
    if (gives_same_bits(backend, t.type, t.format)) formats.push_back(t.format);
  return formats;
}

ggml_tensor* ColumnNodes::multiply(ggml_context* context, ggml_tensor* weight, ggml_tensor* x) {
  const auto* known = std::find_if(std::begin(kTypes), std::end(kTypes), [&](const FormatType& t) {
    return t.type == weight->type &&
           std::find(formats_.begin(), formats_.end(), t.format) != formats_.end();
  });
  // Repacked weights are not in the file's format and lie in memory of another kind.
  if (known == std::end(kTypes) || weight->buffer == nullptr ||
      !ggml_backend_buffer_is_host(weight->buffer))
    return nullptr;
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
  product.weight = weight;
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
  const ggml_tensor* weight = product->weight;
  const std::size_t n_rows = size_of(weight, 1);
  for (std::size_t first = product->next_row.fetch_add(kRowsAtOnce); first < n_rows;
       first = product->next_row.fetch_add(kRowsAtOnce))
    multiply_columns(product->format, static_cast<const std::byte*>(weight->data),
                     size_of(weight, 0), first, std::min(n_rows, first + kRowsAtOnce),
                     static_cast<const std::byte*>(dst->src[0]->data), size_of(dst, 1),
                     static_cast<float*>(dst->data), n_rows);
}

}  // namespace precis
