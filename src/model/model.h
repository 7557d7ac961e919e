// A loaded model: checked configuration, weights, tokenizer, chat template. Immutable after load;
// shared.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/executor.h"
#include "kernels/rope.h"
#include "model/attention_op.h"
#include "model/backend.h"
#include "model/config.h"
#include "model/matmul_choice.h"
#include "model/weight_forms.h"

namespace precis {

class GgufFile;
class Tokenizer;
class ChatTemplate;
struct Weights;

// The configuration alone, without weights or tokenizer. Throws like Model::load.
ModelConfig read_model_config(const std::string& path);

struct WeightTotals {
  std::size_t bytes = 0;         // of all tensors in the file
  std::size_t n_parameters = 0;  // elements of all tensors
  // Read for every decoded token: all but an embedding that only serves to look up one row, in the
  // form in which they are multiplied.
  std::size_t step_bytes = 0;
};

class Model {
 public:
  // Maps the file and prepares the weights for the backend. Throws Error: kIo (cannot be read),
  // kFormat (not a sound GGUF; names the tensor or key), kUnsupported (architecture or feature;
  // lists what is known). kAuto measures: products of prompts for some 0.1 to 0.3 s, forms of
  // weights for some 0.2 s.
  static std::shared_ptr<const Model> load(const std::string& path, Backend& backend,
                                           MatmulMode matmul = MatmulMode::kAuto,
                                           WeightsMode weights = WeightsMode::kAuto);
  ~Model();

  const ModelConfig& config() const { return config_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  // nullptr if the file has no chat template.
  const ChatTemplate* chat_template() const { return chat_template_.get(); }
  const Weights& weights() const { return *weights_; }
  const std::string& path() const { return path_; }
  std::size_t file_bytes() const;
  WeightTotals weight_totals() const;
  // How batches of tokens are multiplied by the weights.
  const MatmulReport& matmul_report() const;
  // Which weights were converted.
  const WeightsReport& weights_report() const;
  // How the keys and queries of a layer are turned.
  Rope rope(std::size_t layer) const;
  // Columns [first, first + n) of a layer's output projection W_O in f32, rows [n_embd, n]; query
  // head q has head_dim of them from q * head_dim on. Thread-safe.
  void expand_output(std::size_t layer, std::size_t first, std::size_t n, float* rows) const;

 private:
  Model();
  ModelConfig config_;
  std::string path_;
  std::unique_ptr<GgufFile> file_;
  std::unique_ptr<Weights> weights_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatTemplate> chat_template_;
};

// Runs the model's graphs with attention left to an AttentionOp. Mutable working memory: one per
// session. Calls lock the backend. A raised cancel flag ends any call within the work of one graph
// node by Error(kCancelled); what the AttentionOp stored so far is then the caller's to drop.
class GraphRunner {
 public:
  GraphRunner(std::shared_ptr<const Model> model, Backend& backend);
  ~GraphRunner();
  GraphRunner(const GraphRunner&) = delete;

  void set_cancel(const CancelFlag* cancel);

  // hidden [n, n_embd] <- scaled embeddings. Token ids must be below n_vocab (checked).
  void embed(std::span<const std::int32_t> tokens, float* hidden);
  // hidden <- layer(hidden), for consecutive tokens from first_position on. All keys and values are
  // stored; the last n_queries tokens attend; of these the last n_outputs get a new hidden row, all
  // others keep theirs.
  void run_layer(std::size_t layer, std::int32_t first_position, std::size_t n_tokens,
                 std::size_t n_queries, std::size_t n_outputs, float* hidden,
                 AttentionOp& attention);
  // logits [n_rows, n_vocab] of final hidden rows [n_rows, n_embd].
  void compute_logits(const float* hidden, std::size_t n_rows, float* logits);
  // All layers over at most chunk_tokens() tokens; logits of the last n_logits tokens, [n_logits,
  // n_vocab].
  void run(std::span<const std::int32_t> tokens, std::int32_t first_position,
           AttentionOp& attention, std::size_t n_logits, float* logits);

  // One token of each of n texts that know nothing of each other: token i at position i, logits of
  // token i to logits[i] [n_vocab]. Every token gets the bits that run() gives it alone. The
  // attention's prepare() is called with n tokens: one for each text, in this order. The graph of
  // each n is built once and kept.
  void run_each(std::span<const std::int32_t> tokens, std::span<const std::int32_t> positions,
                AttentionOp& attention, std::span<float* const> logits);

  // Most tokens that one graph should take: bounded so that one node stays well below 200 ms.
  std::size_t chunk_tokens() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace precis
