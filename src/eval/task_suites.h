// The suites of tasks: which samples are asked of a model, in which order.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "eval/suite.h"
#include "tasks/longbench.h"
#include "tasks/ruler.h"
#include "tasks/sample.h"

namespace precis {

// The tokenizer of an engine, which must outlive it, as the tasks see it.
TokenCodec codec_of(const Engine& engine);

struct RulerOptions {
  std::vector<std::string> tasks;  // empty: all
  std::vector<std::size_t> lengths = {4096};
  std::size_t n_samples = 20;  // of each task and length
  std::uint64_t seed = 1;
  RulerMaterials materials;
};
// Samples of all tasks and lengths in turn, so that a run that is stopped early has some of each.
// Tasks that lack their materials are left out. Throws Error(kInvalidArgument) for an unknown task
// and if all are left out.
Suite ruler_suite(const std::shared_ptr<const Engine>& engine, const RulerOptions& options);

struct NeedleOptions {
  std::vector<std::size_t> lengths = {4096};
  std::vector<double> depths = {0, 25, 50, 75, 100};  // percent
  std::size_t n_samples = 5;                          // of each length and depth
  std::uint64_t seed = 1;
  std::string essay;  // without a word: bland repeated sentences
};
// Throws Error(kInvalidArgument) for a depth outside 0 to 100.
Suite needle_suite(const std::shared_ptr<const Engine>& engine, const NeedleOptions& options);

struct LongBenchOptions {
  std::vector<LongBenchFile> files;
  LongBenchPrompts prompts;
  std::size_t n_samples = SIZE_MAX;  // of each file, at most
  // Tokens of a prompt; 0: what the model's context has beside the longest answer and the template.
  std::size_t limit_tokens = 0;
};
// Reads the files. Throws what read_longbench() and making a sample of a record throw.
Suite longbench_suite(const std::shared_ptr<const Engine>& engine, const LongBenchOptions& options);

// One document and a person's own questions. An answer is scored by whether it contains any of the
// references; without references the score is 0 and the row has none.
struct AskOptions {
  std::string name;  // of the document
  std::string document;
  std::vector<TaskQuestion> questions;
  std::size_t max_new_tokens = 128;
};
Suite ask_suite(const std::shared_ptr<const Engine>& engine, const AskOptions& options);

}  // namespace precis
