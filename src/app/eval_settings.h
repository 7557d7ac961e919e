// The options of an evaluation that its results depend on: read from the command line, and written
// into the result file in the same words.
#pragma once

#include <CLI/CLI.hpp>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "report/result_row.h"

namespace precis::app {

class EvalSettings {
 public:
  using Texts = std::vector<std::string>;

  explicit EvalSettings(CLI::App& parser) : parser_(parser) {}
  EvalSettings(const EvalSettings&) = delete;

  // What is read goes to `into`, which must outlive this object. names as CLI11 wants them, with a
  // long one first or last.
  CLI::Option* text(const std::string& names, std::string& into, const std::string& help);
  CLI::Option* number(const std::string& names, std::size_t& into, std::size_t minimum,
                      std::size_t maximum, const std::string& help);
  CLI::Option* flag(const std::string& names, bool& into, const std::string& help);
  // May be given several times.
  CLI::Option* texts(const std::string& names, Texts& into, const std::string& help);
  // The same, and commas separate (method_list.h); `standard` if it is not given.
  CLI::Option* list(const std::string& names, Texts& into, const std::string& standard,
                    const std::string& help);

  // Splits the lists; once, after parsing.
  void finish();
  // Every option with its values, in the order in which they were added.
  RunRow::Lists values() const;

 private:
  void remember(const CLI::Option& option, std::function<Texts()> values);

  struct Setting {
    std::string name;
    std::function<Texts()> values;
  };
  CLI::App& parser_;
  std::vector<Setting> settings_;
  std::vector<std::function<void()>> splits_;
};

// The words that give a parser these settings.
std::vector<std::string> words_of(const RunRow::Lists& settings);

}  // namespace precis::app
