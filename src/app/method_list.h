// Lists of methods, budgets and row types on the command line, the same for every command that
// compares them.
#pragma once

#include <string>
#include <vector>

#include "eval/eval_method.h"

namespace precis::app {

// The parts of all texts, in order, split at commas as split_list() does; those of `standard` if
// no text is given.
std::vector<std::string> split_all(const std::vector<std::string>& texts,
                                   const std::string& standard = {});

// A method of the registry. Files that the SPEC names are read now (report/budget_file.h).
Method parse_method(const std::string& spec);
// SPECs that name files as their canonical SPECs, which name none; the others as they are.
std::vector<std::string> without_files(std::vector<std::string> specs);

// Every method with every budget, `full` once, in every pair of row types. Throws
// Error(kInvalidArgument) for an unknown method, budget or row type, and if nothing is left.
std::vector<EvalMethod> parse_methods(const std::vector<std::string>& specs,
                                      const std::vector<std::string>& keeps,
                                      const std::vector<std::string>& types_k,
                                      const std::vector<std::string>& types_v);

}  // namespace precis::app
