// What commands that read a document and answer have in common: their options, and the steps from
// these to an engine, a prompt and a request.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "app/commands.h"
#include "engine/engine.h"
#include "engine/prompt.h"
#include "engine/session.h"
#include "model/sampler.h"

namespace precis::app {

struct ModelOptions {
  std::string model;
  std::string matmul = "auto";
  std::string weights = "auto";
  std::size_t n_context = 0;
  std::size_t n_threads = 0;
};

struct CondenseOptions {
  std::string method = "selkv";
  std::string keep;  // empty: see settle_budget
  RowTypes rows;
};

struct AnswerOptions {
  std::size_t n_predict = 128;
  SamplerOptions sampler;  // its seed is an option of its own
  bool ignore_end = false;
};

void add_model(CLI::App& command, ModelOptions& options);
void add_model_speed(CLI::App& command, ModelOptions& options);
void add_condensing(CLI::App& command, CondenseOptions& options);
void add_sampling(CLI::App& command, AnswerOptions& options);
void add_seed(CLI::App& command, std::uint32_t& seed, const std::string& of_what);

std::shared_ptr<const Engine> load_engine(const ModelOptions& options);

// Throws Error(kInvalidArgument) for an unknown method or budget. Without --keep the budget waits
// for settle_budget.
CondenseRequest condense_request(const CondenseOptions& options, std::uint32_t seed);
// Without --keep: 25 %, but at least 256 tokens. n_tokens: of what is condensed.
void settle_budget(const CondenseOptions& options, std::size_t n_tokens, CondenseRequest& request);

// A document by its path; empty for an empty path.
struct Document {
  std::string path;
  std::string text;
  std::size_t n_replaced = 0;
};
// Throws Error(kInvalidArgument) if there is no text in it.
Document read_document(const std::string& path);
// Says on stderr where the document was not valid UTF-8.
void say_replaced(const Document& document);
// Throws Error(kInvalidArgument) if so many bytes cannot be few enough tokens: told before they are
// counted, which takes some 40 bytes of memory a byte.
void check_document_bytes(const Engine& engine, std::size_t n_bytes);
// Throws Error(kInvalidArgument) if the prompt is longer than the model's context, or the one of
// -c.
void check_prompt_length(const Engine& engine, std::size_t n_tokens, std::size_t n_context);

double milliseconds_since(std::chrono::steady_clock::time_point start);

}  // namespace precis::app
