// Writes a result file so that a run can be killed at any point and resumed.
//
// A run is a list of units (a sample or a passage) in a fixed order; the rows of a unit are written
// together. On resuming, whole units stay, what follows the last of them is cut off, and the run
// goes on there, so that the file ends up byte for byte as if nothing had happened. At most one
// unit is lost. Times go to the file beside it, before the unit's rows.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "report/result_row.h"

namespace precis {

// "results.jsonl" -> "results.timing.jsonl"; other names get ".timing.jsonl" appended.
std::string timing_path(const std::string& results);

class RunLog {
 public:
  // rows_of(i): how many rows unit i has; asked for the last unit found only.
  using RowsOf = std::function<std::size_t(std::size_t unit)>;

  // Creates the file with its `run` line, or opens the one of an earlier process and cuts it after
  // its last whole unit. Throws Error(kIo), and Error(kInvalidArgument) if the file belongs to
  // another run (the first field that differs and both values, or the line that is not the plan's)
  // or another process writes to it. The file of times is held to the same. A file that is refused
  // is left as it was.
  RunLog(const std::string& path, const RunRow& run, std::span<const UnitKey> plan,
         const RowsOf& rows_of);
  ~RunLog();
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;

  // Units that are in the file: the first n_done() of the plan.
  std::size_t n_done() const { return n_done_; }
  // Appends the next unit's rows; they are on disk when it returns. Throws Error(kIo): the next
  // process resumes before this unit. REQUIRES: rows of unit n_done() of the plan; their origin is
  // filled in.
  void append(std::vector<ResultRow> rows, std::span<const TimingRow> times);

 private:
  // Whole units at the beginning of a file of `n_bytes` bytes, and where the last of them ends.
  struct Found {
    std::size_t n_units = 0;
    std::size_t n_bytes = 0;
  };
  Found find_units(const std::string& path, const std::string& text, const RowsOf& rows_of) const;
  // Whether a file begins with this run's line; if it has nothing else yet, the line is written.
  bool has_begun(int file, const std::string& path, const std::string& text) const;
  void open_results(const RowsOf& rows_of);
  void open_times();

  std::string path_;
  std::string run_line_;
  RowOrigin origin_;
  std::vector<UnitKey> plan_;
  std::size_t n_done_ = 0;
  int results_ = -1;
  int times_ = -1;
};

}  // namespace precis
