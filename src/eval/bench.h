// What `precis bench` measures: prompt processing and decoding on one engine, over every
// combination of sizes, methods and budgets. Rows that share a test and a depth are measured in
// turns (see turns.h), so that their ratios hold on a machine that does other things too.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "eval/eval_method.h"
#include "eval/read_bandwidth.h"
#include "eval/turns.h"

namespace precis {

struct BenchMethod : EvalMethod {
  std::size_t n_sessions = 1;  // that decode together, each with a prompt of its own
};

struct BenchOptions {
  std::vector<std::size_t> prompts;  // tokens of a prompt test; 0 is left out
  std::vector<std::size_t> answers;  // tokens of a decode test; 0 is left out
  std::vector<std::size_t> depths;   // tokens before the test
  std::vector<BenchMethod> methods;  // compared with the first of them
  bool synthetic = false;            // fill depths with random rows
  std::uint64_t seed = 0;
  std::vector<Token> text;  // prompts are its beginning; empty: random tokens
  TurnOptions turns;        // its progress is per test
  // Called before each test with tests done, tests in all and a name like "tg32 @ d8192".
  std::function<void(std::size_t done, std::size_t total, const std::string& name)> progress;
};

// One row. Times of single repetitions are kept, in order; rows of one test were measured in turns.
struct BenchRow {
  std::size_t n_prompt = 0;
  std::size_t n_gen = 0;
  std::size_t n_depth = 0;
  std::string label;   // BenchMethod::label
  std::string method;  // canonical SPEC
  std::string keep;    // Budget::print(); "100%" for full
  std::string type_k;
  std::string type_v;
  std::size_t n_sessions = 1;
  bool synthetic = false;
  std::vector<double> seconds;
  std::vector<double> ratios;  // tokens a second over the first row of the same test, by repetition

  std::size_t kv_bytes = 0;  // live cache at the depth, or after the prompt
  std::optional<double> gb_per_s;
  std::optional<double> read_bandwidth_gb_s;
  std::optional<double> share_of_bandwidth;
  std::optional<double> bound_share;
  std::optional<double> compress_ms;
  std::optional<double> ttft_ms;
  std::optional<std::size_t> peak_bytes;  // resident, over what was resident before
  // Nothing if it could not be fitted; SIZE_MAX: never.
  std::optional<std::size_t> break_even_prompt;

  // Tokens a second of each repetition.
  std::vector<double> speeds() const;
  // "pp512", "tg32", "tg32 @ d8192".
  std::string test_name() const;
};

// Throws Error(kInvalidArgument) for sizes that do not fit the model's context (both numbers),
// row types that do not fit its head size, an empty list of methods or of tests, a text that is too
// short.
std::vector<BenchRow> run_bench(const std::shared_ptr<const Engine>& engine,
                                const BenchOptions& options, const ReadBandwidth& bandwidth,
                                const Clock& clock);

}  // namespace precis
