#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "base/allocation_guard.h"
#include "base/error.h"
#include "model/layer_graph.h"
#include "model/model.h"

namespace precis {
namespace {

constexpr std::size_t kNodesPerLayer = 64;  // a layer builds at most about 45

}  // namespace

// A built and allocated graph with its inputs and output.
struct BuiltGraph {
  ggml_context_ptr context;
  ggml_cgraph* graph = nullptr;
  ggml_tensor* ids = nullptr;        // I32 [n] or null
  ggml_tensor* hidden = nullptr;     // F32 [n_embd, n] input or null
  ggml_tensor* positions = nullptr;  // I32 [n] or null
  ggml_tensor* output = nullptr;
  std::size_t n_tokens = 0;
  std::size_t n_logits = 0;
  bool has_run = false;
  std::unique_ptr<ColumnNodes> columns;  // of run_each's graphs
};

struct GraphRunner::Impl {
  std::shared_ptr<const Model> model;
  Backend& backend;
  ggml_gallocr_ptr allocator;         // prefill graphs of any shape
  ggml_gallocr_ptr decode_allocator;  // the kept one-token graph
  BuiltGraph decode;
  ggml_gallocr_ptr each_allocator;  // one memory for all kept graphs of run_each
  std::vector<BuiltGraph> each;     // [n]: of n tokens, or empty
  std::optional<ColumnNodes::Formats> formats;
  AttentionOp* attention = nullptr;
  std::vector<AttentionNode> nodes;
  const CancelFlag* cancel = nullptr;

  Impl(std::shared_ptr<const Model> m, Backend& b)
      : model(std::move(m)),
        backend(b),
        allocator(ggml_gallocr_new(b.impl().plain_buffer_type())),
        decode_allocator(ggml_gallocr_new(b.impl().plain_buffer_type())),
        each_allocator(ggml_gallocr_new(b.impl().plain_buffer_type())),
        nodes(model->config().n_layers) {
    for (std::size_t il = 0; il < nodes.size(); ++il) nodes[il] = {&attention, il};
  }

  BuiltGraph begin(std::size_t n_layers, std::size_t n_tokens) const {
    BuiltGraph g;
    const std::size_t n_nodes = (n_layers + 1) * kNodesPerLayer;
    g.context.reset(
        ggml_init({n_nodes * ggml_tensor_overhead() + ggml_graph_overhead_custom(n_nodes, false),
                   nullptr, true}));
    if (!g.context) throw Error(ErrorCode::kOutOfMemory, "no memory for a graph");
    g.graph = ggml_new_graph_custom(g.context.get(), n_nodes, false);
    g.n_tokens = n_tokens;
    return g;
  }

  ggml_tensor* input(BuiltGraph& g, ggml_type type, std::size_t width) const {
    ggml_tensor* t =
        type == GGML_TYPE_I32
            ? ggml_new_tensor_1d(g.context.get(), type, static_cast<std::int64_t>(g.n_tokens))
            : ggml_new_tensor_2d(g.context.get(), type, static_cast<std::int64_t>(width),
                                 static_cast<std::int64_t>(g.n_tokens));
    ggml_set_input(t);
    return t;
  }

  void finish(BuiltGraph& g, ggml_tensor* output, ggml_gallocr_t gallocr) const {
    ggml_set_output(output);
    g.output = output;
    ggml_build_forward_expand(g.graph, output);
    if (!ggml_gallocr_alloc_graph(gallocr, g.graph))
      throw Error(ErrorCode::kOutOfMemory,
                  concat("no memory for the activations of ", g.n_tokens, " tokens"));
  }

  static void set_positions(const BuiltGraph& g, std::int32_t first) {
    auto* p = static_cast<std::int32_t*>(g.positions->data);
    for (std::size_t i = 0; i < g.n_tokens; ++i) p[i] = first + static_cast<std::int32_t>(i);
  }

  void check_tokens(std::span<const std::int32_t> tokens) const {
    for (std::int32_t t : tokens)
      if (t < 0 || static_cast<std::size_t>(t) >= model->config().n_vocab)
        throw Error(
            ErrorCode::kInvalidArgument,
            concat("token ", t, " is outside the model's vocabulary of ", model->config().n_vocab));
  }

  BuiltGraph build_all(std::size_t n_tokens, std::size_t n_logits, ggml_gallocr_t gallocr,
                       std::unique_ptr<ColumnNodes> columns = nullptr) {
    const ModelConfig& c = model->config();
    BuiltGraph g = begin(c.n_layers + 1, n_tokens);
    g.n_logits = n_logits;
    const LayerGraph layers(g.context.get(), c, model->weights(), columns.get());
    g.columns = std::move(columns);
    g.ids = input(g, GGML_TYPE_I32, 1);
    g.positions = input(g, GGML_TYPE_I32, 1);
    ggml_tensor* x = layers.build_embedding(g.ids);
    for (std::size_t il = 0; il < c.n_layers; ++il)
      x = layers.build(x, g.positions, n_tokens, &nodes[il]);
    if (n_logits > 0) {
      if (n_logits < n_tokens)
        x = ggml_view_2d(g.context.get(), x, x->ne[0], static_cast<std::int64_t>(n_logits),
                         x->nb[1], (n_tokens - n_logits) * x->nb[1]);
      x = layers.build_logits(x);
    }
    finish(g, x, gallocr);
    return g;
  }

  // The kept graph of n tokens of different texts. All of them lie in one memory, as only one runs
  // at a time; when it grows it moves, and the graphs in it have to be built again.
  BuiltGraph& graph_of_each(std::size_t n) {
    if (n < each.size() && each[n].graph != nullptr) return each[n];
    const AllocationAllowed once("the graph of a number of tokens is built once");
    if (n >= each.size()) each.resize(n + 1);
    if (!formats) formats = ColumnNodes::find_formats(backend.impl());
    const std::size_t before = ggml_gallocr_get_buffer_size(each_allocator.get(), 0);
    try {
      BuiltGraph built =
          build_all(n, n, each_allocator.get(), std::make_unique<ColumnNodes>(*formats));
      if (ggml_gallocr_get_buffer_size(each_allocator.get(), 0) != before)
        for (BuiltGraph& old : each) old = {};
      each[n] = std::move(built);
    } catch (...) {
      for (BuiltGraph& old : each) old = {};
      throw;
    }
    return each[n];
  }

  void run_built(const BuiltGraph& g, std::span<const std::int32_t> tokens, std::int32_t first,
                 float* logits) {
    std::memcpy(g.ids->data, tokens.data(), tokens.size_bytes());
    set_positions(g, first);
    backend.impl().compute(g.graph, cancel);
    if (g.n_logits > 0)
      std::memcpy(logits, g.output->data, g.n_logits * model->config().n_vocab * sizeof(float));
  }
};

GraphRunner::GraphRunner(std::shared_ptr<const Model> model, Backend& backend)
    : impl_(std::make_unique<Impl>(std::move(model), backend)) {}

GraphRunner::~GraphRunner() = default;

void GraphRunner::set_cancel(const CancelFlag* cancel) { impl_->cancel = cancel; }

void GraphRunner::embed(std::span<const std::int32_t> tokens, float* hidden) {
  Impl& impl = *impl_;
  impl.check_tokens(tokens);
  BuiltGraph g = impl.begin(1, tokens.size());
  g.ids = impl.input(g, GGML_TYPE_I32, 1);
  const LayerGraph layers(g.context.get(), impl.model->config(), impl.model->weights());
  impl.finish(g, layers.build_embedding(g.ids), impl.allocator.get());
  std::memcpy(g.ids->data, tokens.data(), tokens.size_bytes());
  impl.backend.impl().compute(g.graph, impl.cancel);
  std::memcpy(hidden, g.output->data, tokens.size() * impl.model->config().n_embd * sizeof(float));
}

void GraphRunner::run_layer(std::size_t layer, std::int32_t first_position, std::size_t n_tokens,
                            std::size_t n_queries, std::size_t n_outputs, float* hidden,
                            AttentionOp& attention) {
  Impl& impl = *impl_;
  const ModelConfig& c = impl.model->config();
  PRECIS_CHECK(n_outputs <= n_queries && n_queries <= n_tokens, n_outputs, " ", n_queries, " ",
               n_tokens);
  attention.prepare(layer, layer + 1, n_tokens);
  impl.attention = &attention;
  BuiltGraph g = impl.begin(1, n_tokens);
  g.hidden = impl.input(g, GGML_TYPE_F32, c.n_embd);
  g.positions = impl.input(g, GGML_TYPE_I32, 1);
  const LayerGraph layers(g.context.get(), c, impl.model->weights());
  // Of this graph only, which ends here.
  AttentionNode node{&impl.attention, layer, n_outputs, attention.compares_hidden()};
  impl.finish(g, layers.build(g.hidden, g.positions, n_queries, &node), impl.allocator.get());
  std::memcpy(g.hidden->data, hidden, n_tokens * c.n_embd * sizeof(float));
  Impl::set_positions(g, first_position);
  impl.backend.impl().compute(g.graph, impl.cancel);
  if (n_outputs > 0)
    std::memcpy(hidden + (n_tokens - n_outputs) * c.n_embd, g.output->data,
                n_outputs * c.n_embd * sizeof(float));
}

void GraphRunner::compute_logits(const float* hidden, std::size_t n_rows, float* logits) {
  Impl& impl = *impl_;
  const ModelConfig& c = impl.model->config();
  BuiltGraph g = impl.begin(1, n_rows);
  g.hidden = impl.input(g, GGML_TYPE_F32, c.n_embd);
  const LayerGraph layers(g.context.get(), c, impl.model->weights());
  impl.finish(g, layers.build_logits(g.hidden), impl.allocator.get());
  std::memcpy(g.hidden->data, hidden, n_rows * c.n_embd * sizeof(float));
  impl.backend.impl().compute(g.graph, impl.cancel);
  std::memcpy(logits, g.output->data, n_rows * c.n_vocab * sizeof(float));
}

void GraphRunner::run(std::span<const std::int32_t> tokens, std::int32_t first_position,
                      AttentionOp& attention, std::size_t n_logits, float* logits) {
  Impl& impl = *impl_;
  PRECIS_CHECK(!tokens.empty() && n_logits <= tokens.size(), tokens.size(), " ", n_logits);
  impl.check_tokens(tokens);
  attention.prepare(0, impl.model->config().n_layers, tokens.size());
  impl.attention = &attention;
  if (tokens.size() == 1 && n_logits == 1) {
    // The decode graph does not depend on the cache's size, so it is built once per session.
    const AllocationAllowed once("a graph's first run makes room for it, in ggml too",
                                 impl.decode.graph == nullptr);
    if (impl.decode.graph == nullptr)
      impl.decode = impl.build_all(1, 1, impl.decode_allocator.get());
    impl.run_built(impl.decode, tokens, first_position, logits);
    return;
  }
  const BuiltGraph g = impl.build_all(tokens.size(), n_logits, impl.allocator.get());
  impl.run_built(g, tokens, first_position, logits);
}

void GraphRunner::run_each(std::span<const std::int32_t> tokens,
                           std::span<const std::int32_t> positions, AttentionOp& attention,
                           std::span<float* const> logits) {
  Impl& impl = *impl_;
  const std::size_t n = tokens.size();
  PRECIS_CHECK(n > 0 && positions.size() == n && logits.size() == n, n);
  impl.check_tokens(tokens);
  attention.prepare(0, impl.model->config().n_layers, n);
  impl.attention = &attention;
  BuiltGraph& g = impl.graph_of_each(n);
  const AllocationAllowed once("a graph's first run makes room for it, in ggml too", !g.has_run);
  g.has_run = true;
  std::memcpy(g.ids->data, tokens.data(), tokens.size_bytes());
  std::memcpy(g.positions->data, positions.data(), positions.size_bytes());
  g.columns->start();
  impl.backend.impl().compute(g.graph, impl.cancel);
  const auto* rows = static_cast<const float*>(g.output->data);
  const std::size_t width = impl.model->config().n_vocab;
  for (std::size_t i = 0; i < n; ++i) std::copy_n(rows + i * width, width, logits[i]);
}

std::size_t GraphRunner::chunk_tokens() const {
  // Cancellation is looked at between nodes. The largest node is a FFN product of 2 * n_embd * n_ff
  // flops a token; at a pessimistic 20 GFLOPS a node of 3e9 flops takes 150 ms, and the f32
  // product, which takes two such matrices in one node, does more than 30 on one core. Between 32
  // and 512: fewer would waste the weights' bandwidth, more gain nothing (512 is llama.cpp's
  // micro-batch too).
  const ModelConfig& c = impl_->model->config();
  const double flops_per_token = 2.0 * static_cast<double>(c.n_embd) * static_cast<double>(c.n_ff);
  return std::clamp<std::size_t>(static_cast<std::size_t>(3e9 / flops_per_token), 32, 512);
}

}  // namespace precis
