// The suites of `precis eval`: the options of each, the files that it reads, and what it asks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "app/eval_settings.h"
#include "eval/suite.h"

namespace precis::app {

class SuiteCommand {
 public:
  virtual ~SuiteCommand() = default;
  virtual const char* name() const = 0;
  virtual const char* help() const = 0;
  // Whether questions are asked: their options (--query ...) are added then.
  virtual bool asks() const { return true; }
  virtual void add_options(EvalSettings& settings) = 0;
  // Checks the options and reads the files, before a model is loaded. Returns the files' paths.
  virtual std::vector<std::string> read_files() = 0;
  virtual Suite make(const std::shared_ptr<const Engine>& engine, std::uint64_t seed) const = 0;
};

// fidelity, ruler, longbench, needle, ask.
std::vector<std::unique_ptr<SuiteCommand>> make_suite_commands();

}  // namespace precis::app
