// What a model is, as plain numbers: everything that graphs and caches need, read and checked once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace precis {

enum class RopePairs { kAdjacent, kHalves };  // pairs (2i, 2i+1) or (i, i + n_rot/2)
enum class FfnActivation { kSilu, kGelu };

// One set of rotary parameters (a model has up to two: global and sliding layers).
struct RopeConfig {
  float base = 10000.0f;
  float freq_scale = 1.0f;
  float ext_factor = 0.0f;   // YaRN
  float attn_factor = 1.0f;  // magnitude given to ggml_rope_ext
  bool uses_factors = true;  // rope_freqs.weight applies, if the file has it
};

struct ModelConfig {
  std::string arch;
  std::string name;       // general.name, may be empty
  std::string file_type;  // e.g. "Q4_1": the most common type among matrices
  std::size_t n_layers = 0;
  std::size_t n_embd = 0;
  std::size_t n_heads = 0;
  std::size_t n_kv_heads = 0;
  std::size_t head_dim = 0;
  std::size_t n_ff = 0;
  std::size_t n_vocab = 0;
  std::size_t n_ctx_train = 0;
  float norm_eps = 1e-5f;
  float attn_scale = 1.0f;     // logits = attn_scale * q.k
  float attn_softcap = 0.0f;   // 0: none
  float logit_softcap = 0.0f;  // 0: none
  float embd_scale = 1.0f;

  std::size_t window = 0;  // sliding layers see positions p - window < q <= p; 0: no such layers
  std::vector<bool> is_sliding;  // [n_layers]

  std::size_t n_rot = 0;
  std::size_t n_ctx_orig = 0;
  RopePairs rope_pairs = RopePairs::kAdjacent;
  RopeConfig rope_global;
  RopeConfig rope_sliding;

  bool qk_norm = false;     // RMS norm of each query and key head, before RoPE
  bool post_norms = false;  // RMS norm of the attention and FFN outputs, before the residual
  FfnActivation activation = FfnActivation::kSilu;

  std::size_t group() const { return n_heads / n_kv_heads; }
  const RopeConfig& rope(std::size_t layer) const {
    return is_sliding[layer] ? rope_sliding : rope_global;
  }
  // Bytes that one token adds to an f16 cache, over all layers.
  std::size_t kv_bytes_per_token() const { return n_layers * n_kv_heads * head_dim * 2 * 2; }
};

}  // namespace precis
