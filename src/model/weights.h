// The tensors of a model, placed where the backend computes on them fastest. Not for other folders.
#pragma once

#include <memory>
#include <vector>

#include "model/config.h"
#include "model/ggml_backend.h"
#include "model/gguf_file.h"
#include "model/matmul.h"
#include "model/weight_forms.h"

namespace precis {

struct LayerWeights {
  ggml_tensor* attn_norm = nullptr;
  ggml_tensor* q = nullptr;
  ggml_tensor* k = nullptr;
  ggml_tensor* v = nullptr;
  ggml_tensor* qkv = nullptr;  // fused, instead of q, k, v
  ggml_tensor* q_bias = nullptr;
  ggml_tensor* k_bias = nullptr;
  ggml_tensor* v_bias = nullptr;
  ggml_tensor* qkv_bias = nullptr;
  ggml_tensor* q_norm = nullptr;
  ggml_tensor* k_norm = nullptr;
  ggml_tensor* output = nullptr;
  ggml_tensor* output_bias = nullptr;
  ggml_tensor* post_attn_norm = nullptr;
  ggml_tensor* ffn_norm = nullptr;
  ggml_tensor* gate = nullptr;
  ggml_tensor* up = nullptr;
  ggml_tensor* down = nullptr;
  ggml_tensor* gate_bias = nullptr;
  ggml_tensor* up_bias = nullptr;
  ggml_tensor* down_bias = nullptr;
  ggml_tensor* post_ffn_norm = nullptr;
};

struct Weights {
  ggml_tensor* token_embd = nullptr;  // for look-up
  ggml_tensor* output_norm = nullptr;
  ggml_tensor* output = nullptr;  // for logits; shares token_embd's data when tied and not repacked
  ggml_tensor* output_bias = nullptr;
  ggml_tensor* rope_factors = nullptr;  // may be null
  std::vector<LayerWeights> layers;
  std::vector<ggml_tensor*> matrices;  // all that are multiplied
  Matmul matmul;                       // how; decided by Model::load
  WeightsReport forms;                 // in which form

  std::vector<ggml_context_ptr> contexts;
  std::vector<ggml_backend_buffer_ptr> buffers;
};

// Checks every tensor's shape against the configuration and places it: converted where a faster
// form was chosen, repacked when the backend has a faster layout for it, else left in the mapping.
// `file` must outlive the result. Throws Error(kFormat) naming the tensor and both shapes,
// kUnsupported for a tensor that the backend cannot multiply.
std::unique_ptr<Weights> load_weights(const GgufFile& file, const ModelConfig& config,
                                      WeightsMode mode, Backend& backend);

}  // namespace precis
