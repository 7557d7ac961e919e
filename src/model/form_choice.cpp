#include "model/form_choice.h"

#include <algorithm>
#include <chrono>
#include <map>

#include "base/error.h"
#include "model/buffer_choice.h"
#include "model/exact_forms.h"
#include "model/thread_clock.h"

namespace precis {
namespace {

using Matrices = std::vector<const GgufFile::Tensor*>;

// Both forms together are read in turns and so are not in caches of less than about 100 MiB.
constexpr std::size_t kProbeBytes = std::size_t{48} << 20;
// A model's matrices that fit the second cache tell nothing about those that do not, and a
// conversion of so few bytes gains nothing.
constexpr std::size_t kFewestBytes = std::size_t{1} << 20;

// Some matrices in one form, placed as a model places them, and the products of all of them with
// one column each.
class FormProbe {
 public:
  FormProbe(const Matrices& matrices, ggml_type type, Backend& backend)
      : backend_(backend),
        context_(ggml_init({n_nodes(matrices) * ggml_tensor_overhead() +
                                ggml_graph_overhead_custom(n_nodes(matrices), false),
                            nullptr, true})),
        allocator_(ggml_gallocr_new(backend.impl().plain_buffer_type())) {
    PRECIS_CHECK(context_);
    graph_ = ggml_new_graph_custom(context_.get(), n_nodes(matrices), false);
    std::map<std::int64_t, ggml_tensor*> columns;
    for (const GgufFile::Tensor* source : matrices) {
      ggml_tensor*& x = columns[source->ne[0]];
      if (x == nullptr) x = ggml_new_tensor_2d(context_.get(), GGML_TYPE_F32, source->ne[0], 1);
      ggml_set_input(x);
      ggml_tensor* weight = ggml_new_tensor_2d(context_.get(), type, source->ne[0], source->ne[1]);
      place(*source, weight);
      ggml_tensor* y = ggml_mul_mat(context_.get(), weight, x);
      ggml_set_output(y);
      ggml_build_forward_expand(graph_, y);
    }
    if (!ggml_gallocr_alloc_graph(allocator_.get(), graph_)) throw no_memory();
    for (const auto& [width, x] : columns) {
      auto* values = static_cast<float*>(x->data);
      for (std::int64_t i = 0; i < width; ++i) values[i] = static_cast<float>(i % 17) / 8.0f - 1.0f;
    }
  }

  double run() {
    const double start = thread_seconds();
    backend_.impl().compute(graph_, nullptr);
    return thread_seconds() - start;
  }

 private:
  static std::size_t n_nodes(const Matrices& matrices) { return 3 * matrices.size() + 8; }
  static Error no_memory() {
    return {ErrorCode::kOutOfMemory, "no memory to measure forms of weights"};
  }

  void place(const GgufFile::Tensor& source, ggml_tensor* weight) {
    const auto buffer_type = find_buffer_type(backend_.impl(), weight->type, weight->ne[0],
                                              weight->ne[1], WeightUse::kMatrix);
    PRECIS_CHECK(buffer_type, source.name);
    ggml_backend_buffer_ptr buffer(ggml_backend_buft_alloc_buffer(
        *buffer_type, ggml_backend_buft_get_alloc_size(*buffer_type, weight)));
    if (!buffer) throw no_memory();
    ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    PRECIS_CHECK(ggml_backend_tensor_alloc(buffer.get(), weight,
                                           ggml_backend_buffer_get_base(buffer.get())) ==
                     GGML_STATUS_SUCCESS,
                 source.name);
    fill_weight(source, weight, backend_);
    buffers_.push_back(std::move(buffer));
  }

  Backend& backend_;
  ggml_context_ptr context_;
  ggml_gallocr_ptr allocator_;
  ggml_cgraph* graph_ = nullptr;
  std::vector<ggml_backend_buffer_ptr> buffers_;
};

// The largest matrices first: they are most of the bytes, and there is a barrier behind each.
double measure(Matrices matrices, ggml_type type, Backend& backend) {
  std::stable_sort(matrices.begin(), matrices.end(),
                   [](const auto* a, const auto* b) { return a->bytes > b->bytes; });
  Matrices some;
  std::size_t bytes = 0;
  for (const GgufFile::Tensor* t : matrices) {
    if (bytes + t->bytes > kProbeBytes) continue;
    some.push_back(t);
    bytes += t->bytes;
  }
  if (some.empty()) some.push_back(matrices.back());
  FormProbe file(some, some.front()->type, backend);
  FormProbe converted(some, type, backend);
  return measure_speedup(
      [&](FormWay way) { return way == FormWay::kFile ? file.run() : converted.run(); });
}

}  // namespace

WeightsReport choose_forms(WeightsMode mode, const Matrices& matrices, Backend& backend) {
  const auto start = std::chrono::steady_clock::now();
  WeightsReport report;
  report.mode = mode;
  std::map<ggml_type, Matrices> by_type;
  for (const GgufFile::Tensor* t : matrices)
    if (exact_form(t->type)) by_type[t->type].push_back(t);
  for (const auto& [type, same] : by_type) {
    const ggml_type to = *exact_form(type);
    WeightForm form;
    form.type = ggml_type_name(type);
    form.converted = ggml_type_name(to);
    form.n_matrices = same.size();
    for (const GgufFile::Tensor* t : same) {
      form.file_bytes += t->bytes;
      form.converted_bytes += ggml_row_size(to, t->ne[0]) * static_cast<std::size_t>(t->ne[1]);
    }
    if (mode == WeightsMode::kAuto && form.file_bytes >= kFewestBytes)
      form.speedup = measure(same, to, backend);
    form.is_converted = mode == WeightsMode::kQ8_0 || form.speedup >= kLeastSpeedup;
    report.forms.push_back(std::move(form));
  }
  report.measuring_ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace precis
