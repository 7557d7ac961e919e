#include "model/arch.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"

namespace precis {
namespace {

struct ArchRow {
  const char* name;
  RopePairs rope_pairs;
  bool qk_norm;
  bool post_norms;
  FfnActivation activation;
  bool scale_embeddings;  // by sqrt(n_embd)
  std::size_t
      sliding_pattern;  // every pattern-th layer is global, the others slide; 0: none slides
  std::size_t
      embd_scale_layers;  // with this many layers the attention scale is 1/sqrt(n_embd/n_heads)
  bool partial_rope;      // rope.dimension_count may be below head_dim
};

// Facts: engine-facts of the pinned llama.cpp (src/models/{llama,qwen2,qwen3,gemma3}.cpp). Mistral
// 7B and SmolLM2 are "llama"; llama.cpp ignores Mistral's sliding window there, and so do we.
constexpr ArchRow kArchitectures[] = {
    {"gemma3", RopePairs::kHalves, true, true, FfnActivation::kGelu, true, 6, 62, true},
    {"llama", RopePairs::kAdjacent, false, false, FfnActivation::kSilu, false, 0, 0, false},
    {"qwen2", RopePairs::kHalves, false, false, FfnActivation::kSilu, false, 0, 0, true},
    {"qwen3", RopePairs::kHalves, true, false, FfnActivation::kSilu, false, 0, 0, true},
};

// A count within sane bounds, so that products of two never overflow and no array gets absurd.
std::size_t bounded(const std::string& key, std::uint64_t value, std::uint64_t minimum,
                    std::uint64_t maximum) {
  if (value < minimum || value > maximum)
    throw Error(ErrorCode::kFormat, concat("metadata key '", key, "' is ", value, "; expected ",
                                           minimum, " to ", maximum));
  return static_cast<std::size_t>(value);
}

class ConfigReader {
 public:
  ConfigReader(const GgufFile& file, const ArchRow& row) : file_(file), row_(row) {}

  ModelConfig read() {
    config_.arch = row_.name;
    config_.name = file_.find_string("general.name").value_or("");
    read_sizes();
    refuse_unsupported();
    read_sliding();
    read_rope();
    read_numerics();
    config_.file_type = main_type();
    return config_;
  }

 private:
  std::string key(const char* suffix) const { return std::string(row_.name) + "." + suffix; }

  std::size_t count(const char* suffix, std::uint64_t maximum,
                    std::optional<std::uint64_t> fallback = {}) {
    auto value = file_.find_uniform_uint(key(suffix));
    if (!value) value = fallback;
    if (!value)
      throw Error(ErrorCode::kFormat,
                  concat("'", file_.path(), "' has no metadata key '", key(suffix), "'"));
    return bounded(key(suffix), *value, 1, maximum);
  }

  void read_sizes() {
    ModelConfig& c = config_;
    c.n_layers = count("block_count", 4096);
    c.n_embd = count("embedding_length", 1 << 20);
    c.n_heads = count("attention.head_count", 4096);
    c.n_kv_heads = count("attention.head_count_kv", 4096, c.n_heads);
    c.n_ff = count("feed_forward_length", 1 << 22);
    c.n_ctx_train = count("context_length", 1u << 30);
    c.head_dim = count("attention.key_length", 512, c.n_embd / c.n_heads);
    const std::size_t value_dim = count("attention.value_length", 512, c.n_embd / c.n_heads);
    if (value_dim != c.head_dim)
      throw Error(ErrorCode::kUnsupported, concat("keys of ", c.head_dim, " and values of ",
                                                  value_dim, " channels: Precis needs them equal"));
    if (c.head_dim % 8 != 0)
      throw Error(ErrorCode::kUnsupported,
                  concat("head size ", c.head_dim, " is not a multiple of 8"));
    if (c.n_heads % c.n_kv_heads != 0)
      throw Error(ErrorCode::kFormat,
                  concat("attention.head_count ", c.n_heads,
                         " is not a multiple of attention.head_count_kv ", c.n_kv_heads));
    const GgufFile::Tensor* embd = file_.find_tensor("token_embd.weight");
    if (embd == nullptr)
      throw Error(ErrorCode::kFormat,
                  concat("'", file_.path(), "' has no tensor 'token_embd.weight'"));
    c.n_vocab =
        bounded("rows of token_embd.weight", static_cast<std::uint64_t>(embd->ne[1]), 1, 1 << 24);
  }

  void refuse_unsupported() {
    if (const auto n = file_.find_uint(key("expert_count")); n.value_or(0) > 0)
      throw Error(ErrorCode::kUnsupported, concat("'", file_.path(), "' is a mixture of ", *n,
                                                  " experts; Precis runs dense models only"));
    // A block_count that is too small would silently run a part of the model.
    const std::string surplus = "blk." + std::to_string(config_.n_layers) + ".";
    for (const GgufFile::Tensor& t : file_.tensors())
      if (t.name.starts_with(surplus))
        throw Error(ErrorCode::kFormat,
                    concat("'", file_.path(), "' has tensor '", t.name, "' but ",
                           key("block_count"), " is ", config_.n_layers));
    for (const GgufFile::Tensor& t : file_.tensors())
      if (t.name.ends_with(".scale") || t.name.ends_with(".input_scale") ||
          t.name.find("rope_factors_") != std::string::npos)
        throw Error(ErrorCode::kUnsupported,
                    concat("tensor '", t.name, "' in '", file_.path(),
                           "' belongs to a feature that Precis does not run"));
  }

  void read_sliding() {
    ModelConfig& c = config_;
    c.is_sliding.assign(c.n_layers, false);
    if (row_.sliding_pattern == 0) return;
    const auto window = file_.find_uint(key("attention.sliding_window"));
    if (window.value_or(0) == 0) return;
    c.window = bounded(key("attention.sliding_window"), *window, 1, 1u << 30);
    const std::string pattern_key = key("attention.sliding_window_pattern");
    if (auto pattern = file_.find_bools(pattern_key)) {
      if (pattern->size() != c.n_layers)
        throw Error(ErrorCode::kFormat,
                    concat("metadata key '", pattern_key, "' has ", pattern->size(),
                           " elements for ", c.n_layers, " layers"));
      c.is_sliding = *pattern;
      return;
    }
    const std::uint64_t pattern = file_.find_uint(pattern_key).value_or(row_.sliding_pattern);
    for (std::size_t il = 0; il < c.n_layers; ++il)
      c.is_sliding[il] = pattern == 0 || il % pattern < pattern - 1;
  }

  void read_rope() {
    ModelConfig& c = config_;
    c.rope_pairs = row_.rope_pairs;
    c.n_rot = count("rope.dimension_count", 512, c.head_dim);
    if (c.n_rot % 2 != 0 || c.n_rot > c.head_dim || (!row_.partial_rope && c.n_rot != c.head_dim))
      throw Error(ErrorCode::kFormat,
                  concat("rope.dimension_count ", c.n_rot, " does not fit head size ", c.head_dim));
    c.n_ctx_orig = static_cast<std::size_t>(
        file_.find_uint(key("rope.scaling.original_context_length")).value_or(c.n_ctx_train));
    c.n_ctx_orig = bounded(key("rope.scaling.original_context_length"), c.n_ctx_orig, 1, 1u << 30);

    RopeConfig& rope = c.rope_global;
    rope.base = positive("rope.freq_base", 10000.0);
    const std::string type = file_.find_string(key("rope.scaling.type")).value_or("linear");
    if (type != "none" && type != "linear" && type != "yarn")
      throw Error(ErrorCode::kUnsupported,
                  concat("RoPE scaling type '", type, "'; Precis knows none, linear, yarn"));
    double factor = file_.find_float(key("rope.scaling.factor")).value_or(0.0);
    if (factor == 0.0) factor = file_.find_float(key("rope.scale_linear")).value_or(0.0);
    if (factor < 0.0)
      throw Error(ErrorCode::kFormat,
                  concat("metadata key '", key("rope.scaling.factor"), "' is ", factor));
    rope.freq_scale = factor == 0.0 || type == "none" ? 1.0f : 1.0f / static_cast<float>(factor);
    rope.attn_factor = positive("rope.scaling.attn_factor", 1.0);
    // YaRN's magnitude 1 + 0.1 ln(factor) is applied inside ggml_rope_ext, so it is not repeated
    // here.
    rope.ext_factor = type == "yarn" ? 1.0f : 0.0f;

    c.rope_sliding = rope;
    if (c.window > 0) {
      c.rope_sliding.base = positive("rope.freq_base_swa", 10000.0);
      c.rope_sliding.freq_scale = 1.0f;
    }
  }

  void read_numerics() {
    ModelConfig& c = config_;
    const auto eps = file_.find_float(key("attention.layer_norm_rms_epsilon"));
    if (!eps || !(*eps >= 0.0 && *eps < 1.0))
      throw Error(ErrorCode::kFormat,
                  concat("metadata key '", key("attention.layer_norm_rms_epsilon"),
                         "' is missing or not in [0, 1)"));
    c.norm_eps = static_cast<float>(*eps);
    c.qk_norm = row_.qk_norm;
    c.post_norms = row_.post_norms;
    c.activation = row_.activation;
    const bool by_width = row_.embd_scale_layers != 0 && c.n_layers == row_.embd_scale_layers;
    const std::size_t divisor = by_width ? c.n_embd / c.n_heads : c.head_dim;
    c.attn_scale = 1.0f / std::sqrt(static_cast<float>(divisor));
    if (const auto scale = file_.find_float(key("attention.scale")); scale && *scale != 0.0)
      c.attn_scale = static_cast<float>(*scale);
    c.embd_scale = row_.scale_embeddings ? std::sqrt(static_cast<float>(c.n_embd)) : 1.0f;
    c.logit_softcap =
        static_cast<float>(file_.find_float(key("final_logit_softcapping")).value_or(0.0));
  }

  float positive(const char* suffix, double fallback) {
    const double value = file_.find_float(key(suffix)).value_or(fallback);
    if (!(value > 0.0))
      throw Error(ErrorCode::kFormat,
                  concat("metadata key '", key(suffix), "' is ", value, "; it must be positive"));
    return static_cast<float>(value);
  }

  std::string main_type() const {
    std::map<ggml_type, std::size_t> bytes;
    for (const GgufFile::Tensor& t : file_.tensors())
      if (t.ne[1] > 1 && t.name != "token_embd.weight") bytes[t.type] += t.bytes;
    const auto most =
        std::max_element(bytes.begin(), bytes.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    return most == bytes.end() ? "none" : ggml_type_name(most->first);
  }

  const GgufFile& file_;
  const ArchRow& row_;
  ModelConfig config_;
};

}  // namespace

std::string known_architectures() {
  std::string names;
  for (const ArchRow& row : kArchitectures)
    names += (names.empty() ? "" : ", ") + std::string(row.name);
  return names;
}

ModelConfig read_config(const GgufFile& file) {
  const std::string arch = file.string("general.architecture");
  for (const ArchRow& row : kArchitectures)
    if (arch == row.name) return ConfigReader(file, row).read();
  throw Error(ErrorCode::kUnsupported,
              concat("architecture '", arch, "' of '", file.path(),
                     "' is not supported; Precis runs ", known_architectures()));
}

}  // namespace precis
