#include "model/layer_graph.h"

#include <algorithm>

#include "model/rope.h"

namespace precis {
namespace {

const float* floats(const ggml_tensor* t) { return static_cast<const float*>(t->data); }

// The three phases of attention as ggml custom nodes: ggml puts a barrier between nodes, so each
// phase sees all of the one before. Sources: store {k, v}; attend {q, store}; finish {q, attend}.
// What every phase is called with; its first source has the tokens in dimension 2.
AttentionCall call_of(const ggml_tensor* dst, const AttentionNode& node, int ith, int nth) {
  AttentionCall call;
  call.layer = node.layer;
  call.n_tokens = static_cast<std::size_t>(dst->src[0]->ne[2]);
  call.n_outputs = std::min(node.n_outputs, call.n_tokens);
  call.thread = static_cast<std::size_t>(ith);
  call.n_threads = static_cast<std::size_t>(nth);
  return call;
}

void store_node(ggml_tensor* dst, int ith, int nth, void* data) noexcept {
  const auto& node = *static_cast<const AttentionNode*>(data);
  AttentionCall call = call_of(dst, node, ith, nth);
  call.k = floats(dst->src[0]);
  call.v = floats(dst->src[1]);
  (*node.op)->store(call);
}

void attend_node(ggml_tensor* dst, int ith, int nth, void* data) noexcept {
  const auto& node = *static_cast<const AttentionNode*>(data);
  AttentionCall call = call_of(dst, node, ith, nth);
  call.q = floats(dst->src[0]);
  (*node.op)->attend(call);
}

void finish_node(ggml_tensor* dst, int ith, int nth, void* data) noexcept {
  const auto& node = *static_cast<const AttentionNode*>(data);
  AttentionCall call = call_of(dst, node, ith, nth);
  call.q = floats(dst->src[0]);
  call.out = static_cast<float*>(dst->data);
  (*node.op)->finish(call);
}

// A node in the way of the hidden states, so that it runs whatever comes after it: hands on what is
// after attention and has it compared with what was before. Sources: before, after.
void compare_node(ggml_tensor* dst, int ith, int nth, void* data) noexcept {
  const auto& node = *static_cast<const AttentionNode*>(data);
  HiddenCall call;
  call.layer = node.layer;
  call.width = static_cast<std::size_t>(dst->ne[0]);
  call.n_tokens = static_cast<std::size_t>(dst->ne[1]);
  call.before = floats(dst->src[0]);
  call.after = floats(dst->src[1]);
  call.thread = static_cast<std::size_t>(ith);
  call.n_threads = static_cast<std::size_t>(nth);
  (*node.op)->compare_hidden(call);
  auto* out = static_cast<float*>(dst->data);
  for (std::size_t t = call.thread; t < call.n_tokens; t += call.n_threads)
    std::copy_n(call.after + t * call.width, call.width, out + t * call.width);
}

}  // namespace

ggml_tensor* LayerGraph::norm(ggml_tensor* x, ggml_tensor* weight) const {
  return ggml_mul(context_, ggml_rms_norm(context_, x, config_.norm_eps), weight);
}

ggml_tensor* LayerGraph::add_bias(ggml_tensor* x, ggml_tensor* bias) const {
  return bias == nullptr ? x : ggml_add(context_, x, bias);
}

ggml_tensor* LayerGraph::linear(ggml_tensor* weight, ggml_tensor* bias, ggml_tensor* x) const {
  return add_bias(multiply({&weight, 1}, x)[0], bias);
}

std::vector<ggml_tensor*> LayerGraph::multiply(std::span<ggml_tensor* const> weights,
                                               ggml_tensor* x) const {
  if (columns_ == nullptr || x->ne[1] == 1) return weights_.matmul.build(context_, weights, x);
  std::vector<ggml_tensor*> products;
  for (ggml_tensor* weight : weights) {
    ggml_tensor* y = columns_->multiply(context_, weight, weights_.matmul.rows_of(weight), x);
    if (y == nullptr) {
      // ggml picks other kernels from 2, 4 and 8 columns on (llamafile, repacked, tiled), by the
      // length of dimension 1. With the tokens in dimension 2 it takes the kernel for one column,
      // and still walks 16 weight rows by 16 tokens at a time.
      ggml_tensor* each = ggml_reshape_3d(context_, x, x->ne[0], 1, x->ne[1]);
      y = ggml_mul_mat(context_, weight, each);
      y = ggml_reshape_2d(context_, y, y->ne[0], y->ne[2]);
    }
    products.push_back(y);
  }
  return products;
}

// Of [width, n_tokens] or [n_tokens]; contiguous.
ggml_tensor* LayerGraph::last_columns(ggml_tensor* x, std::int64_t n) const {
  const bool is_vector = x->ne[1] == 1 && x->type == GGML_TYPE_I32;
  const std::int64_t n_tokens = is_vector ? x->ne[0] : x->ne[1];
  if (n == n_tokens) return x;
  const auto skipped = static_cast<std::size_t>(n_tokens - n);
  return is_vector ? ggml_view_1d(context_, x, n, skipped * x->nb[0])
                   : ggml_view_2d(context_, x, x->ne[0], n, x->nb[1], skipped * x->nb[1]);
}

ggml_tensor* LayerGraph::rope(ggml_tensor* x, ggml_tensor* positions, std::size_t layer) const {
  const RopeConfig& r = config_.rope(layer);
  const int mode =
      config_.rope_pairs == RopePairs::kHalves ? GGML_ROPE_TYPE_NEOX : GGML_ROPE_TYPE_NORMAL;
  return ggml_rope_ext(context_, x, positions, weights_.rope_factors,
                       static_cast<int>(config_.n_rot), mode, static_cast<int>(config_.n_ctx_orig),
                       r.base, r.freq_scale, r.ext_factor, r.attn_factor, kYarnBetaFast,
                       kYarnBetaSlow);
}

LayerGraph::Projections LayerGraph::project_fused(ggml_tensor* x, std::int64_t n_queries,
                                                  const LayerWeights& w) const {
  const auto q_width = static_cast<std::int64_t>(config_.n_heads * config_.head_dim);
  const auto kv_width = static_cast<std::int64_t>(config_.n_kv_heads * config_.head_dim);
  ggml_tensor* all = linear(w.qkv, w.qkv_bias, x);
  const auto part = [&](std::int64_t first, std::int64_t width, std::int64_t n) {
    const auto offset = static_cast<std::size_t>(first) * sizeof(float) +
                        static_cast<std::size_t>(x->ne[1] - n) * all->nb[1];
    return ggml_cont(context_, ggml_view_2d(context_, all, width, n, all->nb[1], offset));
  };
  return {n_queries == 0 ? nullptr : part(0, q_width, n_queries), part(q_width, kv_width, x->ne[1]),
          part(q_width + kv_width, kv_width, x->ne[1])};
}

LayerGraph::Projections LayerGraph::project(ggml_tensor* x, std::int64_t n_queries,
                                            const LayerWeights& w) const {
  Projections p;
  if (w.qkv != nullptr) {
    p = project_fused(x, n_queries, w);
  } else if (n_queries == x->ne[1]) {
    ggml_tensor* const weights[] = {w.q, w.k, w.v};
    const auto y = multiply(weights, x);
    p = {y[0], y[1], y[2]};
  } else {
    ggml_tensor* const weights[] = {w.k, w.v};
    const auto y = multiply(weights, x);
    p = {nullptr, y[0], y[1]};
    if (n_queries > 0) p.q = linear(w.q, nullptr, last_columns(x, n_queries));
  }
  if (p.q != nullptr) p.q = add_bias(p.q, w.q_bias);
  p.k = add_bias(p.k, w.k_bias);
  p.v = add_bias(p.v, w.v_bias);
  return p;
}

ggml_tensor* LayerGraph::attention(ggml_tensor* x, ggml_tensor* positions, std::int64_t n_queries,
                                   AttentionNode* node) const {
  const LayerWeights& w = weights_.layers[node->layer];
  const auto head_dim = static_cast<std::int64_t>(config_.head_dim);
  const auto n_heads = static_cast<std::int64_t>(config_.n_heads);
  const auto n_kv_heads = static_cast<std::int64_t>(config_.n_kv_heads);
  const std::int64_t n_tokens = x->ne[1];
  const Projections p = project(x, n_queries, w);
  ggml_tensor* k = ggml_reshape_3d(context_, p.k, head_dim, n_kv_heads, n_tokens);
  ggml_tensor* v = ggml_reshape_3d(context_, p.v, head_dim, n_kv_heads, n_tokens);
  if (w.k_norm != nullptr) k = norm(k, w.k_norm);
  k = rope(k, positions, node->layer);

  ggml_tensor* kv[] = {k, v};
  ggml_tensor* stored = ggml_custom_4d(context_, GGML_TYPE_F32, 1, 1, 1, 1, kv, 2, store_node,
                                       GGML_N_TASKS_MAX, node);
  if (n_queries == 0) return stored;
  ggml_tensor* q = ggml_reshape_3d(context_, p.q, head_dim, n_heads, n_queries);
  if (w.q_norm != nullptr) q = norm(q, w.q_norm);
  q = rope(q, last_columns(positions, n_queries), node->layer);
  ggml_tensor* qs[] = {q, stored};
  ggml_tensor* attended = ggml_custom_4d(context_, GGML_TYPE_F32, 1, 1, 1, 1, qs, 2, attend_node,
                                         GGML_N_TASKS_MAX, node);
  ggml_tensor* qa[] = {q, attended};
  const auto n_outputs =
      static_cast<std::int64_t>(std::min(node->n_outputs, static_cast<std::size_t>(n_queries)));
  ggml_tensor* out = ggml_custom_4d(context_, GGML_TYPE_F32, head_dim * n_heads,
                                    std::max<std::int64_t>(n_outputs, 1), 1, 1, qa, 2, finish_node,
                                    GGML_N_TASKS_MAX, node);
  if (n_outputs == 0) return out;
  return linear(w.output, w.output_bias, out);
}

ggml_tensor* LayerGraph::feed_forward(ggml_tensor* x, const LayerWeights& w) const {
  ggml_tensor* const weights[] = {w.gate, w.up};
  const auto y = multiply(weights, x);
  ggml_tensor* gate = add_bias(y[0], w.gate_bias);
  ggml_tensor* up = add_bias(y[1], w.up_bias);
  ggml_tensor* h = config_.activation == FfnActivation::kGelu
                       ? ggml_geglu_split(context_, gate, up)
                       : ggml_swiglu_split(context_, gate, up);
  return linear(w.down, w.down_bias, h);
}

ggml_tensor* LayerGraph::build(ggml_tensor* x, ggml_tensor* positions, std::size_t n_queries,
                               AttentionNode* node) const {
  const LayerWeights& w = weights_.layers[node->layer];
  const auto n = static_cast<std::int64_t>(std::min(node->n_outputs, n_queries));
  ggml_tensor* a =
      attention(norm(x, w.attn_norm), positions, static_cast<std::int64_t>(n_queries), node);
  if (n == 0) return a;
  if (w.post_attn_norm != nullptr) a = norm(a, w.post_attn_norm);
  ggml_tensor* before = last_columns(x, n);
  x = ggml_add(context_, before, a);
  if (node->compares_hidden) {
    ggml_tensor* states[] = {before, x};
    x = ggml_custom_4d(context_, GGML_TYPE_F32, x->ne[0], n, 1, 1, states, 2, compare_node,
                       GGML_N_TASKS_MAX, node);
  }
  ggml_tensor* f = feed_forward(norm(x, w.ffn_norm), w);
  if (w.post_ffn_norm != nullptr) f = norm(f, w.post_ffn_norm);
  return ggml_add(context_, x, f);
}

ggml_tensor* LayerGraph::build_logits(ggml_tensor* x) const {
  ggml_tensor* y = linear(weights_.output, weights_.output_bias, norm(x, weights_.output_norm));
  if (config_.logit_softcap == 0.0f) return y;
  y = ggml_scale(context_, y, 1.0f / config_.logit_softcap);
  return ggml_scale(context_, ggml_tanh(context_, y), config_.logit_softcap);
}

ggml_tensor* LayerGraph::build_embedding(ggml_tensor* ids) const {
  ggml_tensor* x = ggml_get_rows(context_, weights_.token_embd, ids);
  return config_.embd_scale == 1.0f ? x : ggml_scale(context_, x, config_.embd_scale);
}

}  // namespace precis
