// Files of layer budgets, for layers=evolkv(path="FILE"): what `precis eval evolve` writes and what
// anyone may write by hand. JSON, one object:
//
//   format        "precis layer budgets"
//   version       1
//   model         name of the model's file
//   model_sha256  its hash, or ""
//   n_layers      layers that can be condensed (those without a sliding window)
//   shares        [n_layers]: budget of each layer relative to the mean one; any unit, only their
//                 proportions count
//   search        optional, of a search: settings, the value of every candidate so far in order,
//                 whether it is finished
//
// Other members are ignored.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace precis {

struct BudgetSearchLog {
  std::vector<std::pair<std::string, std::string>> settings;  // what the search depends on
  std::vector<double> values;                                 // lower is better
  bool finished = false;

  bool empty() const { return settings.empty(); }
};

struct BudgetFile {
  std::string model;
  std::string model_sha256;
  std::vector<double> shares;
  BudgetSearchLog search;  // empty: none
};

// More layers than any model has; their shares still fit in a SPEC.
inline constexpr std::size_t kMostBudgetLayers = 256;

// Throws Error(kFormat), naming `name`, the member and the numbers that disagree: text that is not
// JSON (line and column), a member that is missing or of another type, a share that is negative or
// above 1e6 or not 0 and below 0.001, no layers or more than kMostBudgetLayers, shares that are all
// 0, n_layers that is not the number of shares, another version.
BudgetFile parse_budget_file(std::string_view text, const std::string& name);
// Reads back equal, bit for bit. REQUIRES: parse_budget_file() would accept the shares.
std::string print_budget_file(const BudgetFile& file);
// A regular file of at most 4 MiB. Throws Error(kIo) too.
BudgetFile read_budget_file(const std::string& path);

}  // namespace precis
