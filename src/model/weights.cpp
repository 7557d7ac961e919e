#include "model/weights.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "model/buffer_choice.h"
#include "model/exact_forms.h"
#include "model/form_choice.h"

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
  Loader(const GgufFile& file, const ModelConfig& config, Backend& backend)
      : file_(file),
        config_(config),
        backend_(backend),
        types_(backend.impl().weight_buffer_types()),
        weights_(std::make_unique<Weights>()) {
    const std::size_t n_tensors =
        file.tensors().size() + 2;  // a tied embedding may be placed twice
    for (std::size_t i = 0; i <= types_.size(); ++i) {
      weights_->contexts.emplace_back(
          ggml_init({n_tensors * ggml_tensor_overhead(), nullptr, true}));
      PRECIS_CHECK(weights_->contexts.back());
    }
  }

  std::unique_ptr<Weights> load(WeightsMode mode) {
    walk();
    weights_->forms = choose_forms(mode, matrices_, backend_);
    is_checked_ = true;
    walk();
    place();
    return std::move(weights_);
  }

 private:
  struct Placement {
    const GgufFile::Tensor* source;
    ggml_tensor* tensor;
    std::size_t type_index;  // types_.size(): in the mapping
  };

  // All tensors of the architecture, twice: first they are only checked.
  void walk() {
    Weights& w = *weights_;
    const ModelConfig& c = config_;
    w.token_embd = take("token_embd.weight", {c.n_embd, c.n_vocab}, Use::kLookup);
    w.output_norm = take("output_norm.weight", {c.n_embd}, Use::kVector);
    const char* output =
        file_.find_tensor("output.weight") != nullptr ? "output.weight" : "token_embd.weight";
    w.output = take(output, {c.n_embd, c.n_vocab}, Use::kMatrix);
    w.output_bias = take_optional("output.bias", {c.n_vocab}, Use::kVector);
    w.rope_factors = take_optional("rope_freqs.weight", {c.n_rot / 2}, Use::kVector);
    w.layers.clear();
    for (std::size_t il = 0; il < c.n_layers; ++il) w.layers.push_back(walk_layer(il));
  }

  LayerWeights walk_layer(std::size_t il) {
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
    const std::size_t type_index = choose_place(*source, source->type, use);
    if (!is_checked_) {
      if (use == Use::kMatrix) matrices_.push_back(source);
      return nullptr;
    }
    return use == Use::kMatrix ? add_matrix(*source) : add(*source, source->type, type_index);
  }

  ggml_tensor* add(const GgufFile::Tensor& source, ggml_type type, std::size_t type_index) {
    ggml_tensor* tensor =
        ggml_new_tensor_2d(weights_->contexts[type_index].get(), type, source.ne[0], source.ne[1]);
    ggml_set_name(tensor, source.name.c_str());
    placements_.push_back({&source, tensor, type_index});
    return tensor;
  }

  ggml_tensor* add_matrix(const GgufFile::Tensor& source) {
    const ggml_type type = chosen_type(source.type);
    std::size_t type_index = choose_place(source, type, Use::kMatrix);
    // A converted matrix needs memory of its own.
    if (type != source.type && type_index == types_.size()) type_index = types_.size() - 1;
    ggml_tensor* tensor = add(source, type, type_index);
    weights_->matrices.push_back(tensor);
    // Rows that products in f32 can read stay at hand: the file's, unless the matrix' own are
    // plain.
    const bool is_plain =
        type_index == types_.size() || types_[type_index] == backend_.impl().plain_buffer_type();
    if (!is_plain) weights_->matmul.add_source(tensor, add(source, source.type, types_.size()));
    return tensor;
  }

  ggml_type chosen_type(ggml_type type) const {
    for (const WeightForm& form : weights_->forms.forms)
      if (form.is_converted && form.type == ggml_type_name(type)) return *exact_form(type);
    return type;
  }

  void check_shape(const GgufFile::Tensor& source, const Shape& shape) const {
    Shape found(source.ne, source.ne + 4);
    while (found.size() > shape.size() && found.back() == 1) found.pop_back();
    if (found != shape)
      throw Error(ErrorCode::kFormat,
                  concat("tensor '", source.name, "' in '", file_.path(), "' has shape ",
                         print_shape(found), "; the metadata asks for ", print_shape(shape)));
  }

  // Index into types_ of the memory in which a tensor of that type is used fastest; types_.size()
  // if it can stay in the mapping.
  std::size_t choose_place(const GgufFile::Tensor& source, ggml_type type, Use use) const {
    if (use == Use::kVector) return types_.size();
    // The backend says yes to integers and f64 too, and then crashes on them.
    const bool is_float = source.type == GGML_TYPE_F32 || source.type == GGML_TYPE_F16 ||
                          source.type == GGML_TYPE_BF16;
    if (!is_float && !ggml_is_quantized(source.type))
      throw Error(ErrorCode::kUnsupported,
                  concat("tensor '", source.name, "' is ", ggml_type_name(source.type),
                         "; Precis needs a float or quantised type there"));
    const auto found =
        find_buffer_type(backend_.impl(), type, source.ne[0], source.ne[1],
                         use == Use::kLookup ? WeightUse::kLookup : WeightUse::kMatrix);
    if (!found)
      throw Error(ErrorCode::kUnsupported,
                  concat("tensor '", source.name, "' of type ", ggml_type_name(type),
                         " cannot be computed on this backend"));
    // Plain memory needs no copy: the mapping is plain memory.
    if (*found == backend_.impl().plain_buffer_type()) return types_.size();
    return static_cast<std::size_t>(std::find(types_.begin(), types_.end(), *found) -
                                    types_.begin());
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
        fill_weight(*p.source, p.tensor, backend_);
        file_.release_pages(*p.source);
      }
    }
  }

  const GgufFile& file_;
  const ModelConfig& config_;
  Backend& backend_;
  std::vector<ggml_backend_buffer_type_t> types_;
  std::unique_ptr<Weights> weights_;
  bool is_checked_ = false;
  std::vector<const GgufFile::Tensor*> matrices_;
  std::vector<Placement> placements_;
};

}  // namespace

std::unique_ptr<Weights> load_weights(const GgufFile& file, const ModelConfig& config,
                                      WeightsMode mode, Backend& backend) {
  return Loader(file, config, backend).load(mode);
}

}  // namespace precis
