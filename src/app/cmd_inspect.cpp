#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "app/commands.h"
#include "model/model.h"

namespace precis::app {
namespace {

struct InspectOptions {
  std::string model;
  bool json = false;
};

std::size_t count_sliding(const ModelConfig& c) {
  std::size_t n = 0;
  for (const bool sliding : c.is_sliding) n += sliding ? 1 : 0;
  return n;
}

// Names come from the file: no line breaks, no terminal sequences.
std::string printable(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  return text.substr(0, 200);
}

void print_json(const ModelConfig& c, std::size_t sliding_per_token) {
  nlohmann::ordered_json out;
  out["architecture"] = c.arch;
  out["name"] = c.name;
  out["file_type"] = c.file_type;
  out["n_layers"] = c.n_layers;
  out["n_sliding_layers"] = count_sliding(c);
  out["window"] = c.window;
  out["n_embd"] = c.n_embd;
  out["n_heads"] = c.n_heads;
  out["n_kv_heads"] = c.n_kv_heads;
  out["head_dim"] = c.head_dim;
  out["n_vocab"] = c.n_vocab;
  out["context"] = c.n_ctx_train;
  out["kv_bytes_per_token"] = c.kv_bytes_per_token();
  out["compressible_kv_bytes_per_token"] = c.kv_bytes_per_token() - sliding_per_token;
  std::printf("%s\n", out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

void inspect(const InspectOptions& options) {
  const ModelConfig c = read_model_config(options.model);
  const std::size_t n_sliding = count_sliding(c);
  const std::size_t per_layer = c.kv_bytes_per_token() / c.n_layers;
  if (options.json) {
    print_json(c, n_sliding * per_layer);
    return;
  }
  std::printf("architecture        %s\n", c.arch.c_str());
  if (!c.name.empty()) std::printf("name                %s\n", printable(c.name).c_str());
  std::printf("weights             %s\n", c.file_type.c_str());
  std::printf("layers              %zu", c.n_layers);
  if (n_sliding > 0)
    std::printf(" (%zu with a sliding window of %zu tokens, never compressed)", n_sliding,
                c.window);
  std::printf("\nembedding           %zu\n", c.n_embd);
  std::printf("heads               %zu query, %zu KV, %zu channels each\n", c.n_heads, c.n_kv_heads,
              c.head_dim);
  std::printf("vocabulary          %zu\n", c.n_vocab);
  std::printf("context             %zu tokens\n", c.n_ctx_train);
  std::printf("KV bytes per token  %zu (f16), %zu of them compressible\n", c.kv_bytes_per_token(),
              c.kv_bytes_per_token() - n_sliding * per_layer);
  const double full = static_cast<double>(c.n_layers - n_sliding) * static_cast<double>(per_layer) *
                          static_cast<double>(c.n_ctx_train) +
                      static_cast<double>(n_sliding * per_layer) *
                          static_cast<double>(std::min(c.window, c.n_ctx_train));
  std::printf("KV at full context  %.1f MiB\n", full / (1 << 20));
}

}  // namespace

Command add_inspect(CLI::App& parent) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* command =
      parent.add_subcommand("inspect", "Show what a GGUF model is and what its cache costs");
  command->add_option("model,-m,--model", options->model, "GGUF file")
      ->required()
      ->envname("PRECIS_ARG_MODEL");
  command->add_flag("--json", options->json, "Print one JSON object");
  return [options] { inspect(*options); };
}

}  // namespace precis::app
