// Builds the ggml nodes of one transformer layer from the model's configuration. Not for other
// folders.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/attention_op.h"
#include "model/column_nodes.h"
#include "model/config.h"
#include "model/ggml_backend.h"
#include "model/weights.h"

namespace precis {

// Passed to the custom nodes; must outlive the graph.
struct AttentionNode {
  AttentionOp** op = nullptr;  // where the runner keeps the current implementation
  std::size_t layer = 0;
  std::size_t n_outputs = SIZE_MAX;  // tokens that want a result: the last ones, at most
  bool compares_hidden = false;      // call AttentionOp::compare_hidden() for these tokens
};

class LayerGraph {
 public:
  // columns: nullptr to multiply several tokens the fastest way, in which sums may round
  // differently for each number of tokens. Otherwise every token gets the bits that it gets by
  // itself, whoever else is there; the weights are still read once for all.
  LayerGraph(ggml_context* context, const ModelConfig& config, const Weights& weights,
             ColumnNodes* columns = nullptr)
      : context_(context), config_(config), weights_(weights), columns_(columns) {}

  // x [n_embd, n_tokens], positions I32 [n_tokens] -> [n_embd, n_outputs]: the last tokens, as many
  // as node->n_outputs says. The last n_queries >= n_outputs tokens attend. Without outputs the
  // result is the last of attention's nodes.
  ggml_tensor* build(ggml_tensor* x, ggml_tensor* positions, std::size_t n_queries,
                     AttentionNode* node) const;
  // Final norm and output matrix of rows [n_embd, n] -> [n_vocab, n].
  ggml_tensor* build_logits(ggml_tensor* x) const;
  // ids I32 [n] -> [n_embd, n].
  ggml_tensor* build_embedding(ggml_tensor* ids) const;

 private:
  ggml_tensor* norm(ggml_tensor* x, ggml_tensor* weight) const;
  // Products of several matrices with the same x.
  std::vector<ggml_tensor*> multiply(std::span<ggml_tensor* const> weights, ggml_tensor* x) const;
  ggml_tensor* linear(ggml_tensor* weight, ggml_tensor* bias, ggml_tensor* x) const;
  ggml_tensor* rope(ggml_tensor* x, ggml_tensor* positions, std::size_t layer) const;
  // Queries, keys, values of one layer, before norms and RoPE; q for the last tokens only.
  struct Projections {
    ggml_tensor* q = nullptr;
    ggml_tensor* k = nullptr;
    ggml_tensor* v = nullptr;
  };
  Projections project(ggml_tensor* x, std::int64_t n_queries, const LayerWeights& w) const;
  Projections project_fused(ggml_tensor* x, std::int64_t n_queries, const LayerWeights& w) const;
  ggml_tensor* add_bias(ggml_tensor* x, ggml_tensor* bias) const;
  ggml_tensor* last_columns(ggml_tensor* x, std::int64_t n) const;
  ggml_tensor* attention(ggml_tensor* x, ggml_tensor* positions, std::int64_t n_queries,
                         AttentionNode* node) const;
  ggml_tensor* feed_forward(ggml_tensor* x, const LayerWeights& w) const;

  ggml_context* context_;
  const ModelConfig& config_;
  const Weights& weights_;
  ColumnNodes* columns_;
};

}  // namespace precis
