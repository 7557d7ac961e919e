#include "engine/engine.h"

namespace precis {
namespace {

class ModelOutput final : public ExpandedProjection {
 public:
  ModelOutput(const Model& model, std::size_t layer) : model_(model), layer_(layer) {}

 private:
  std::size_t n_outputs() const override { return model_.config().n_embd; }
  void expand(std::size_t first, std::size_t n, float* rows) const override {
    model_.expand_output(layer_, first, n, rows);
  }

  const Model& model_;
  std::size_t layer_;
};

}  // namespace

std::shared_ptr<const Engine> Engine::load(const std::string& model_path,
                                           const EngineOptions& options) {
  std::shared_ptr<Engine> engine(new Engine);
  engine->backend_ = std::make_unique<Backend>(options.n_threads);
  engine->model_ = Model::load(model_path, *engine->backend_, options.matmul, options.weights);
  const ModelConfig& c = engine->config();
  for (const std::size_t il : engine->compressible_indices()) {
    engine->ropes_.push_back(std::make_unique<const Rope>(engine->model_->rope(il)));
    engine->outputs_.push_back(std::make_unique<const ModelOutput>(*engine->model_, il));
    engine->layers_.push_back({{c.n_kv_heads, c.head_dim},
                               c.group(),
                               {c.attn_scale, c.attn_softcap},
                               engine->ropes_.back().get(),
                               engine->outputs_.back().get()});
  }
  return engine;
}

std::vector<std::size_t> Engine::compressible_indices() const {
  std::vector<std::size_t> indices;
  for (std::size_t il = 0; il < config().n_layers; ++il)
    if (!config().is_sliding[il]) indices.push_back(il);
  return indices;
}

}  // namespace precis
