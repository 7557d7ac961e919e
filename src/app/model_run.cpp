#include "app/model_run.h"

#include <algorithm>
#include <cstdio>

#include "app/method_list.h"
#include "app/row_type_options.h"
#include "app/text_file.h"
#include "app/weights_option.h"
#include "base/error.h"

namespace precis::app {
namespace {

// Without --keep a short prompt is not worth condensing below this: 256 tokens are a few MiB of
// cache.
constexpr const char* kDefaultKeep = "25%";
constexpr std::size_t kDefaultTokens = 256;

// CLI11's own range lets NaN pass.
CLI::Validator finite_range(float minimum, float maximum) {
  return CLI::Range(minimum, maximum) & CLI::Validator(
                                            [](std::string& text) {
                                              return text.find_first_of("nN") == std::string::npos
                                                         ? ""
                                                         : "'" + text + "' is not a number";
                                            },
                                            "");
}

}  // namespace

void add_model(CLI::App& command, ModelOptions& o) {
  command.add_option("-m,--model", o.model, "GGUF file")->required()->envname("PRECIS_ARG_MODEL");
}

void add_model_speed(CLI::App& command, ModelOptions& o) {
  command
      .add_option("-c,--ctx-size", o.n_context,
                  "Refuse prompts longer than this (0: the model's context)")
      ->check(CLI::Range(0u, 1u << 30))
      ->envname("PRECIS_ARG_CTX_SIZE");
  command.add_option("-t,--threads", o.n_threads, "Threads (0: one per core)")
      ->check(CLI::Range(0u, 512u))
      ->envname("PRECIS_ARG_THREADS");
  command
      .add_option("--matmul", o.matmul,
                  "Products of prompt and weights: auto (measured), ggml, or sgemm (f32)")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "ggml", "sgemm"}))
      ->envname("PRECIS_ARG_MATMUL");
  add_weights_mode(command, o.weights);
}

void add_condensing(CLI::App& command, CondenseOptions& o) {
  command.add_option("--method", o.method, "SPEC of the compression; see 'precis methods'")
      ->capture_default_str()
      ->envname("PRECIS_ARG_METHOD");
  command
      .add_option(
          "--keep", o.keep,
          "What may be kept: 25%, 2048 (tokens) or 512MiB (default: 25%, but at least 256 tokens); "
          "positions and biases count, so 43 tokens' bytes hold 42 entries")
      ->envname("PRECIS_ARG_KEEP");
  add_row_types(command, o.rows);
}

void add_sampling(CLI::App& command, AnswerOptions& o) {
  command.add_option("-n,--predict", o.n_predict, "Most tokens of the answer")
      ->capture_default_str()
      ->check(CLI::Range(1u, 1u << 20))
      ->envname("PRECIS_ARG_N_PREDICT");
  command.add_option("--temp", o.sampler.temperature, "Temperature (0: greedy)")
      ->capture_default_str()
      ->check(finite_range(0.0f, 100.0f))
      ->envname("PRECIS_ARG_TEMP");
  command.add_option("--top-k", o.sampler.top_k, "Draw from the k likeliest (0: all)")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 30))
      ->envname("PRECIS_ARG_TOP_K");
  command
      .add_option("--top-p", o.sampler.top_p,
                  "Draw from the likeliest that reach this mass (1: all)")
      ->capture_default_str()
      ->check(finite_range(0.0f, 1.0f))
      ->envname("PRECIS_ARG_TOP_P");
  command
      .add_option("--min-p", o.sampler.min_p,
                  "Drop tokens below this share of the likeliest (0: none)")
      ->capture_default_str()
      ->check(finite_range(0.0f, 1.0f))
      ->envname("PRECIS_ARG_MIN_P");
  command.add_flag("--ignore-eos", o.ignore_end, "Go on after the model ends its answer");
}

void add_seed(CLI::App& command, std::uint32_t& seed, const std::string& of_what) {
  command.add_option("-s,--seed", seed, "Seed of " + of_what)->envname("PRECIS_ARG_SEED");
}

std::shared_ptr<const Engine> load_engine(const ModelOptions& o) {
  return Engine::load(o.model,
                      {o.n_threads, parse_matmul_mode(o.matmul), parse_weights_mode(o.weights)});
}

CondenseRequest condense_request(const CondenseOptions& o, std::uint32_t seed) {
  CondenseRequest request;
  request.method = parse_method(o.method);
  request.budget = Budget::parse(o.keep.empty() ? kDefaultKeep : o.keep);
  request.seed = seed;
  request.rows = o.rows;
  return request;
}

void settle_budget(const CondenseOptions& o, std::size_t n_tokens, CondenseRequest& request) {
  if (o.keep.empty() && n_tokens < 4 * kDefaultTokens)
    request.budget = Budget::parse(std::to_string(kDefaultTokens));
}

Document read_document(const std::string& path) {
  if (path.empty()) return {};
  TextFile file = read_text_file(path);
  if (file.text.find_first_not_of(" \t\r\n\f\v") == std::string::npos)
    throw Error(ErrorCode::kInvalidArgument,
                concat("the document '", path, "' is empty: it has no text"));
  return {path, std::move(file.text), file.n_replaced};
}

void say_replaced(const Document& document) {
  if (document.n_replaced > 0)
    std::fprintf(stderr, "precis: '%s' is not valid UTF-8; replaced by U+FFFD in %zu places\n",
                 document.path.c_str(), document.n_replaced);
}

void check_document_bytes(const Engine& engine, std::size_t n_bytes) {
  // The longest tokens of known vocabularies.
  constexpr std::size_t kMaxTokenBytes = 256;
  if (n_bytes / kMaxTokenBytes > engine.config().n_ctx_train)
    throw Error(ErrorCode::kInvalidArgument,
                concat("the document has ", n_bytes, " bytes, far more than the model's ",
                       "context of ", engine.config().n_ctx_train,
                       " tokens; shorten it or use a model with a longer context"));
}

void check_prompt_length(const Engine& engine, std::size_t n_tokens, std::size_t n_context) {
  const std::size_t model_limit = engine.config().n_ctx_train;
  const std::size_t limit = n_context == 0 ? model_limit : std::min(n_context, model_limit);
  if (n_tokens > limit)
    throw Error(ErrorCode::kInvalidArgument,
                concat("the prompt has ", n_tokens, " tokens but the ",
                       limit < model_limit ? "context set with -c" : "model's context", " is ",
                       limit, " tokens; shorten the prompt or use a model with a longer context"));
}

double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

}  // namespace precis::app
