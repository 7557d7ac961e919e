#include "model/model.h"

#include "base/error.h"
#include "model/arch.h"
#include "model/chat_template.h"
#include "model/expand_columns.h"
#include "model/gguf_file.h"
#include "model/rope.h"
#include "model/tokenizer.h"
#include "model/vocabulary_check.h"
#include "model/weights.h"

namespace precis {

ModelConfig read_model_config(const std::string& path) { return read_config(GgufFile(path)); }

Model::Model() = default;
Model::~Model() = default;

std::size_t Model::file_bytes() const { return file_->file_bytes(); }

WeightTotals Model::weight_totals() const {
  WeightTotals totals;
  for (const GgufFile::Tensor& t : file_->tensors()) {
    totals.bytes += t.bytes;
    totals.n_parameters += static_cast<std::size_t>(t.ne[0] * t.ne[1] * t.ne[2] * t.ne[3]);
  }
  totals.step_bytes = totals.bytes;
  const GgufFile::Tensor* embedding = file_->find_tensor("token_embd.weight");
  if (embedding != nullptr && file_->find_tensor("output.weight") != nullptr)
    totals.step_bytes -= embedding->bytes;
  totals.step_bytes += weights_->forms.added_bytes();
  return totals;
}

const MatmulReport& Model::matmul_report() const { return weights_->matmul.report(); }

const WeightsReport& Model::weights_report() const { return weights_->forms; }

Rope Model::rope(std::size_t layer) const {
  const ggml_tensor* factors = weights_->rope_factors;
  if (factors == nullptr) return describe_rope(config_, layer, {});
  const auto* values = static_cast<const float*>(factors->data);
  return describe_rope(config_, layer, {values, config_.n_rot / 2});
}

void Model::expand_output(std::size_t layer, std::size_t first, std::size_t n, float* rows) const {
  expand_columns(*weights_->matmul.rows_of(weights_->layers[layer].output), first, n, rows);
}

std::shared_ptr<const Model> Model::load(const std::string& path, Backend& backend,
                                         MatmulMode matmul, WeightsMode weights_mode) {
  std::shared_ptr<Model> model(new Model);
  model->path_ = path;
  model->file_ = std::make_unique<GgufFile>(path);
  model->config_ = read_config(*model->file_);
  check_vocabulary(*model->file_, model->config_.n_vocab);
  model->tokenizer_ = std::make_unique<Tokenizer>(path);
  const std::string source = model->file_->find_string("tokenizer.chat_template").value_or("");
  if (!source.empty())
    model->chat_template_ = std::make_unique<ChatTemplate>(source, model->tokenizer_->bos_text(),
                                                           model->tokenizer_->eos_text());
  model->file_->prefault();
  model->weights_ = load_weights(*model->file_, model->config_, weights_mode, backend);
  Weights& weights = *model->weights_;
  weights.matmul.choose(matmul, weights.matrices, backend.impl());
  return model;
}

}  // namespace precis
