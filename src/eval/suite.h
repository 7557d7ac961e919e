// A list of units to evaluate in a fixed order, and the loop that does it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "eval/eval_method.h"
#include "eval/fidelity.h"
#include "report/run_log.h"

namespace precis {

struct Suite {
  std::string name;
  std::vector<UnitKey> units;
  std::vector<std::string> left_out;  // what could not be made, each with its reason
  // Evaluates unit i. The same rows whatever was evaluated before.
  std::function<EvalRows(std::size_t unit, const EvalOptions& options)> run;
  // How many rows run(i) gives.
  std::function<std::size_t(std::size_t unit, const EvalOptions& options)> count;
};

// Every n_shards-th unit: unit k belongs to shard k mod n_shards + 1. Throws
// Error(kInvalidArgument) for a shard outside 1 ... n_shards.
Suite shard_of(const Suite& suite, std::size_t shard, std::size_t n_shards);

// Evaluates the units that the log lacks. progress is called before the first unit and after each,
// with units done and in all. Throws what a unit throws; what is in the log stays.
void run_suite(const Suite& suite, const EvalOptions& options, RunLog& log,
               const std::function<void(std::size_t done, std::size_t total)>& progress);

struct FidelityOptions {
  std::vector<std::pair<std::string, std::string>> texts;  // name, text
  std::size_t n_prefix = 1024;
  std::size_t n_continuation = 256;
  std::size_t n_passages = 8;  // of each text, at most
};
// Passages (fidelity.h) that follow one another in each text without overlap, the texts in turn. A
// text too short for one passage is named in left_out. Throws Error(kInvalidArgument) if all are,
// or if passages do not fit the model's context, or if two texts have one name.
std::vector<Passage> cut_passages(const Engine& engine, const FidelityOptions& options,
                                  std::vector<std::string>& left_out);
Suite fidelity_suite(const std::shared_ptr<const Engine>& engine, const FidelityOptions& options);

}  // namespace precis
