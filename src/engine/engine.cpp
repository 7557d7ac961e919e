#include "engine/engine.h"

namespace precis {

std::shared_ptr<const Engine> Engine::load(const std::string& model_path,
                                           const EngineOptions& options) {
  std::shared_ptr<Engine> engine(new Engine);
  engine->backend_ = std::make_unique<Backend>(options.n_threads);
  engine->model_ = Model::load(model_path, *engine->backend_, options.matmul, options.weights);
  return engine;
}

std::vector<LayerShape> Engine::compressible_layers() const {
  const ModelConfig& c = config();
  LayerShape shape;
  shape.kv = {c.n_kv_heads, c.head_dim};
  shape.group = c.group();
  shape.rule = {c.attn_scale, c.attn_softcap};
  return std::vector<LayerShape>(compressible_indices().size(), shape);
}

std::vector<std::size_t> Engine::compressible_indices() const {
  std::vector<std::size_t> indices;
  for (std::size_t il = 0; il < config().n_layers; ++il)
    if (!config().is_sliding[il]) indices.push_back(il);
  return indices;
}

}  // namespace precis
