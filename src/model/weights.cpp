#include "model/weights.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace precis {
namespace {

using Shape = std::vector<std::size_t>;

std::string print_shape(const Shape& shape) {
  std::string text = "[";
  for (std::size_t n : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(n);
  return text + "]";
}

enum class Use { kMatrix, kLookup, kVector };

class Loader {
 public:
  Loader(const GgufFile& file, const ModelConfig& config, const Backend::Impl& backend)
      : file_(file),
        config_(config),
        backend_(backend),
        types_(backend.weight_buffer_types()),
        weights_(std::make_unique<Weights>()) {
    const std::size_t n_tensors =
        file.tensors().size() + 2;  // a tied embedding may be placed twice
    for (std::size_t i = 0; i <= types_.size(); ++i) {
      weights_->contexts.emplace_back(
          ggml_init({n_tensors * ggml_tensor_overhead(), nullptr, true}));
      PRECIS_CHECK(weights_->contexts.back());
    }
  }

  std::unique_ptr<Weights> load() {
    Weights& w = *weights_;
    const ModelConfig& c = config_;
    w.token_embd = take("token_embd.weight", {c.n_embd, c.n_vocab}, Use::kLookup);
    w.output_norm = take("output_norm.weight", {c.n_embd}, Use::kVector);
    const char* output =
        file_.find_tensor("output.weight") != nullptr ? "output.weight" : "token_embd.weight";
    w.output = take(output, {c.n_embd, c.n_vocab}, Use::kMatrix);
    w.output_bias = take_optional("output.bias", {c.n_vocab}, Use::kVector);
    w.rope_factors = take_optional("rope_freqs.weight", {c.n_rot / 2}, Use::kVector);
    for (std::size_t il = 0; il < c.n_layers; ++il) w.layers.push_back(load_layer(il));
    place();
    return std::move(weights_);
  }

 private:
  struct Placement {
    const GgufFile::Tensor* source;
    ggml_tensor* tensor;
    std::size_t type_index;  // types_.size(): in the mapping
  };

  LayerWeights load_layer(std::size_t il) {
    const ModelConfig& c = config_;
    const std::size_t q_width = c.n_heads * c.head_dim;
    const std::size_t kv_width = c.n_kv_heads * c.head_dim;
    const std::string prefix = "blk." + std::to_string(il) + ".";
    const auto matrix = [&](const char* name, const Shape& shape) {
      return take(prefix + name, shape, Use::kMatrix);
    };
    const auto vector = [&](const char* name, std::size_t n) {
      return take(prefix + name, {n}, Use::kVector);
    };
    const auto bias = [&](const char* name, std::size_t n) {
      return take_optional(prefix + name, {n}, Use::kVector);
    };
    LayerWeights w;
    w.attn_norm = vector("attn_norm.weight", c.n_embd);
    if (file_.find_tensor(prefix + "attn_qkv.weight") != nullptr) {
      w.qkv = matrix("attn_qkv.weight", {c.n_embd, q_width + 2 * kv_width});
      w.qkv_bias = bias("attn_qkv.bias", q_width + 2 * kv_width);
    } else {
      w.q = matrix("attn_q.weight", {c.n_embd, q_width});
      w.k = matrix("attn_k.weight", {c.n_embd, kv_width});
      w.v = matrix("attn_v.weight", {c.n_embd, kv_width});
    }
    w.q_bias = bias("attn_q.bias", q_width);
    w.k_bias = bias("attn_k.bias", kv_width);
    w.v_bias = bias("attn_v.bias", kv_width);
    if (c.qk_norm) {
      w.q_norm = vector("attn_q_norm.weight", c.head_dim);
      w.k_norm = vector("attn_k_norm.weight", c.head_dim);
    }
    w.output = matrix("attn_output.weight", {q_width, c.n_embd});
    w.output_bias = bias("attn_output.bias", c.n_embd);
    w.ffn_norm = vector("ffn_norm.weight", c.n_embd);
    w.gate = matrix("ffn_gate.weight", {c.n_embd, c.n_ff});
    w.up = matrix("ffn_up.weight", {c.n_embd, c.n_ff});
    w.down = matrix("ffn_down.weight", {c.n_ff, c.n_embd});
    w.gate_bias = bias("ffn_gate.bias", c.n_ff);
    w.up_bias = bias("ffn_up.bias", c.n_ff);
    w.down_bias = bias("ffn_down.bias", c.n_embd);
    if (c.post_norms) {
      w.post_attn_norm = vector("post_attention_norm.weight", c.n_embd);
      w.post_ffn_norm = vector("post_ffw_norm.weight", c.n_embd);
    }
    return w;
  }

  ggml_tensor* take_optional(const std::string& name, const Shape& shape, Use use) {
    return file_.find_tensor(name) == nullptr ? nullptr : take(name, shape, use);
  }

  ggml_tensor* take(const std::string& name, const Shape& shape, Use use) {
    const GgufFile::Tensor* source = file_.find_tensor(name);
    if (source == nullptr)
      throw Error(ErrorCode::kFormat, concat("'", file_.path(), "' has no tensor '", name, "'"));
    check_shape(*source, shape);
    if (use == Use::kVector && source->type != GGML_TYPE_F32)
      throw Error(ErrorCode::kUnsupported,
                  concat("tensor '", name, "' is ", ggml_type_name(source->type),
                         "; Precis needs f32 there"));
    const std::size_t type_index = choose_type(*source, use);
    ggml_tensor* tensor = ggml_new_tensor(weights_->contexts[type_index].get(), source->type,
                                          static_cast<int>(shape.size()), source->ne);
    ggml_set_name(tensor, name.c_str());
    placements_.push_back({source, tensor, type_index});
    if (use == Use::kMatrix) {
      weights_->matrices.push_back(tensor);
      // Rows in the file's format stay at hand for products in f32.
      if (type_index != types_.size()) {
        ggml_tensor* rows = ggml_dup_tensor(weights_->contexts[types_.size()].get(), tensor);
        placements_.push_back({source, rows, types_.size()});
        weights_->matmul.add_source(tensor, rows);
      }
    }
    return tensor;
  }

  void check_shape(const GgufFile::Tensor& source, const Shape& shape) const {
    Shape found(source.ne, source.ne + 4);
    while (found.size() > shape.size() && found.back() == 1) found.pop_back();
    if (found != shape)
      throw Error(ErrorCode::kFormat,
                  concat("tensor '", source.name, "' in '", file_.path(), "' has shape ",
                         print_shape(found), "; the metadata asks for ", print_shape(shape)));
  }

  // The first buffer type on which the backend can run the operation that will use the tensor.
  std::size_t choose_type(const GgufFile::Tensor& source, Use use) const {
    if (use == Use::kVector) return types_.size();
    // The backend says yes to integers and f64 too, and then crashes on them.
    const bool is_float = source.type == GGML_TYPE_F32 || source.type == GGML_TYPE_F16 ||
                          source.type == GGML_TYPE_BF16;
    if (!is_float && !ggml_is_quantized(source.type))
      throw Error(ErrorCode::kUnsupported,
                  concat("tensor '", source.name, "' is ", ggml_type_name(source.type),
                         "; Precis needs a float or quantised type there"));
    ggml_context_ptr context(ggml_init({ggml_tensor_overhead() * 8, nullptr, true}));
    ggml_tensor* weight =
        ggml_new_tensor_2d(context.get(), source.type, source.ne[0], source.ne[1]);
    ggml_tensor* op =
        use == Use::kLookup
            ? ggml_get_rows(context.get(), weight,
                            ggml_new_tensor_1d(context.get(), GGML_TYPE_I32, 512))
            : ggml_mul_mat(context.get(), weight,
                           ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, source.ne[0], 512));
    for (std::size_t i = 0; i < types_.size(); ++i) {
      ggml_backend_buffer_ptr probe(ggml_backend_buft_alloc_buffer(types_[i], 0));
      weight->buffer = probe.get();
      const bool supported = ggml_backend_dev_supports_op(backend_.device, op);
      weight->buffer = nullptr;
      // Plain memory needs no copy: the mapping is plain memory.
      if (supported) return types_[i] == backend_.plain_buffer_type() ? types_.size() : i;
    }
    throw Error(ErrorCode::kUnsupported,
                concat("tensor '", source.name, "' of type ", ggml_type_name(source.type),
                       " cannot be computed on this backend"));
  }

  void place() {
    for (std::size_t i = 0; i < types_.size(); ++i) {
      if (ggml_get_first_tensor(weights_->contexts[i].get()) == nullptr) continue;
      ggml_backend_buffer_t buffer =
          ggml_backend_alloc_ctx_tensors_from_buft(weights_->contexts[i].get(), types_[i]);
      if (buffer == nullptr)
        throw Error(ErrorCode::kOutOfMemory,
                    concat("no memory for the weights of '", file_.path(), "'"));
      weights_->buffers.emplace_back(buffer);
      ggml_backend_buffer_set_usage(buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    }
    for (const Placement& p : placements_) {
      if (p.type_index == types_.size()) {
        void* address = const_cast<void*>(p.source->data);
        ggml_backend_buffer_t buffer = ggml_backend_cpu_buffer_from_ptr(address, p.source->bytes);
        weights_->buffers.emplace_back(buffer);
        ggml_backend_buffer_set_usage(buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        PRECIS_CHECK(ggml_backend_tensor_alloc(buffer, p.tensor, address) == GGML_STATUS_SUCCESS,
                     p.source->name);
      } else {
        ggml_backend_tensor_set(p.tensor, p.source->data, 0, p.source->bytes);
        file_.release_pages(*p.source);
      }
    }
  }

  const GgufFile& file_;
  const ModelConfig& config_;
  const Backend::Impl& backend_;
  std::vector<ggml_backend_buffer_type_t> types_;
  std::unique_ptr<Weights> weights_;
  std::vector<Placement> placements_;
};

}  // namespace

std::unique_ptr<Weights> load_weights(const GgufFile& file, const ModelConfig& config,
                                      const Backend::Impl& backend) {
  return Loader(file, config, backend).load();
}

}  // namespace precis
