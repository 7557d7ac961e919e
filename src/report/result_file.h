// Result files: a run line, then rows (result_row.h), one JSON object a line.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "report/result_row.h"

namespace precis {

struct ResultFile {
  std::string path;  // as it was given
  RunRow run;
  std::vector<ResultRow> rows;       // all others, in the order of the file
  std::vector<std::string> skipped;  // "results.jsonl:17: field 'score' is missing"; the first 1000
  std::size_t n_skipped = 0;         // all of them
};

constexpr std::size_t kMostLineBytes = std::size_t{64} << 20;
// Of a file. What is read takes at most about four times as much memory.
constexpr std::size_t kMostResultBytes = std::size_t{1} << 30;

// Lines of white space are ignored. A malformed line is skipped and listed; `strict`: refused with
// Error(kFormat), which names file, line and fault. Always refused with kFormat: a file without
// lines, one whose first row is no run, one with a second run (two files in one), one of more than
// kMostResultBytes. Throws Error(kIo) when it cannot be read.
ResultFile read_results(const std::string& path, bool strict = false);

// In their order.
std::vector<ResultFile> read_results(const std::vector<std::string>& paths, bool strict = false);

// What read_results reads: the run, then the rows, each line ended by a line feed.
std::string print_results(const ResultFile& file);

}  // namespace precis
