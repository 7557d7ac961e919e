// Engine: one model on one backend, immutable, shared by sessions and threads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "compress/condenser.h"
#include "compress/output_projection.h"
#include "model/chat_template.h"
#include "model/model.h"
#include "model/tokenizer.h"

namespace precis {

struct EngineOptions {
  std::size_t n_threads = 0;  // 0: one per core
  // How prompts are multiplied by the weights; a fixed way gives the same bits on every run.
  MatmulMode matmul = MatmulMode::kAuto;
  // In which form weights are multiplied; a fixed form takes the same memory on every run.
  WeightsMode weights = WeightsMode::kAuto;
};

class Engine {
 public:
  // Throws Error, see Model::load.
  static std::shared_ptr<const Engine> load(const std::string& model_path,
                                            const EngineOptions& options);

  const Model& model() const { return *model_; }
  const std::shared_ptr<const Model>& shared_model() const { return model_; }
  const ModelConfig& config() const { return model_->config(); }
  const Tokenizer& tokenizer() const { return model_->tokenizer(); }
  // Locks itself; one graph or task list runs at a time.
  Backend& backend() const { return *backend_; }

  // Compressible layers (those without a sliding window), in model order, as the condenser wants
  // them; they point into the engine.
  const std::vector<LayerShape>& compressible_layers() const { return layers_; }
  // Model layer of each of them.
  std::vector<std::size_t> compressible_indices() const;

 private:
  Engine() = default;
  std::unique_ptr<Backend> backend_;
  std::shared_ptr<const Model> model_;
  std::vector<LayerShape> layers_;  // compressible ones
  std::vector<std::unique_ptr<const Rope>> ropes_;
  std::vector<std::unique_ptr<const OutputProjection>> outputs_;
};

}  // namespace precis
