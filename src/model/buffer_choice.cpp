#include "model/buffer_choice.h"

namespace precis {

std::optional<ggml_backend_buffer_type_t> find_buffer_type(const Backend::Impl& backend,
                                                           ggml_type type, std::int64_t n_in,
                                                           std::int64_t n_out, WeightUse use) {
  ggml_context_ptr context(ggml_init({ggml_tensor_overhead() * 8, nullptr, true}));
  ggml_tensor* weight = ggml_new_tensor_2d(context.get(), type, n_in, n_out);
  ggml_tensor* op = use == WeightUse::kLookup
                        ? ggml_get_rows(context.get(), weight,
                                        ggml_new_tensor_1d(context.get(), GGML_TYPE_I32, 512))
                        : ggml_mul_mat(context.get(), weight,
                                       ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, n_in, 512));
  for (const ggml_backend_buffer_type_t buffer_type : backend.weight_buffer_types()) {
    ggml_backend_buffer_ptr probe(ggml_backend_buft_alloc_buffer(buffer_type, 0));
    weight->buffer = probe.get();
    const bool supported = ggml_backend_dev_supports_op(backend.device, op);
    weight->buffer = nullptr;
    if (supported) return buffer_type;
  }
  return std::nullopt;
}

}  // namespace precis
