#include "report/run_log.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "report/run_difference.h"

namespace precis {
namespace {

[[noreturn]] void fail(const char* what, const std::string& path) {
  throw Error(ErrorCode::kIo, concat("cannot ", what, " '", path, "': ", std::strerror(errno)));
}

std::string read_all(int file, const std::string& path) {
  std::string text;
  std::string block(1 << 20, '\0');
  if (lseek(file, 0, SEEK_SET) != 0) fail("read", path);
  while (true) {
    const ssize_t n = read(file, block.data(), block.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("read", path);
    if (n == 0) return text;
    text.append(block, 0, static_cast<std::size_t>(n));
  }
}

void write_all(int file, const std::string& text, const std::string& path) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t n = write(file, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("write to", path);
    done += static_cast<std::size_t>(n);
  }
  // EINVAL: not on a disk (a pipe, a device), so there is nothing to wait for.
  if (fdatasync(file) != 0 && errno != EINVAL) fail("write to", path);
}

int open_for_appending(const std::string& path) {
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file < 0) fail("open", path);
  return file;
}

void cut(int file, std::size_t size, const std::string& path) {
  if (ftruncate(file, static_cast<off_t>(size)) != 0) fail("shorten", path);
}

}  // namespace

std::string timing_path(const std::string& results) {
  constexpr std::string_view kEnding = ".jsonl";
  std::string stem = results;
  if (stem.ends_with(kEnding)) stem.resize(stem.size() - kEnding.size());
  return stem + ".timing.jsonl";
}

RunLog::RunLog(const std::string& path, const RunRow& run, std::span<const UnitKey> plan,
               const RowsOf& rows_of)
    : path_(path),
      run_line_(print_row(run) + "\n"),
      origin_{run.version, run.model_sha256, run.seed},
      plan_(plan.begin(), plan.end()) {
  try {
    open_results(rows_of);
    open_times();
  } catch (...) {
    if (results_ >= 0) close(results_);
    if (times_ >= 0) close(times_);
    throw;
  }
}

RunLog::~RunLog() {
  close(results_);
  close(times_);
}

bool RunLog::has_begun(int file, const std::string& path, const std::string& text) const {
  if (text.starts_with(run_line_)) return true;
  // Empty, or killed before its first line was whole.
  if (run_line_.starts_with(text)) {
    cut(file, 0, path);
    write_all(file, run_line_, path);
    return false;
  }
  std::string what = "is not a result file";
  try {
    const ResultRow first = parse_row(std::string_view(text).substr(0, text.find('\n')));
    if (const auto* run = std::get_if<RunRow>(&first))
      what = "holds another run, " +
             run_difference(*run, std::get<RunRow>(parse_row(run_line_))).value_or("");
  } catch (const Error&) {
    // The line's own fault does not matter: the file is not ours.
  }
  throw Error(ErrorCode::kInvalidArgument,
              concat("'", path, "' ", what, "; choose another output file or remove it"));
}

void RunLog::open_results(const RowsOf& rows_of) {
  results_ = open_for_appending(path_);
  if (flock(results_, LOCK_EX | LOCK_NB) != 0)
    throw Error(ErrorCode::kInvalidArgument,
                concat("another process writes to '", path_,
                       "'; wait for it or choose another output file"));
  const std::string text = read_all(results_, path_);
  if (!has_begun(results_, path_, text)) return;
  const Found found = find_units(path_, text, rows_of);
  n_done_ = found.n_units;
  cut(results_, found.n_bytes, path_);
}

// The times' units are those of the results, and perhaps one more whose rows did not get written.
void RunLog::open_times() {
  const std::string path = timing_path(path_);
  times_ = open_for_appending(path);
  const std::string text = read_all(times_, path);
  if (!has_begun(times_, path, text)) return;
  std::size_t end = run_line_.size();
  std::size_t n_units = 0;
  UnitKey last;
  for (std::size_t begin = end; begin < text.size(); begin = end) {
    const std::size_t stop = text.find('\n', begin);
    if (stop == std::string::npos) break;
    UnitKey unit;
    try {
      const ResultRow row = parse_row(std::string_view(text).substr(begin, stop - begin));
      if (key_of(row) == nullptr) break;
      unit = unit_of(*key_of(row));
    } catch (const Error&) {
      break;
    }
    if (n_units == 0 || !(unit == last)) ++n_units;
    if (n_units > n_done_) break;
    last = unit;
    end = stop + 1;
  }
  cut(times_, end, path);
}

RunLog::Found RunLog::find_units(const std::string& path, const std::string& text,
                                 const RowsOf& rows_of) const {
  Found whole{0, run_line_.size()};
  std::size_t n_rows = 0;  // of the unit being read
  std::size_t end = whole.n_bytes;
  std::size_t n_started = 0;
  for (std::size_t line = 2, begin = end; begin < text.size(); ++line) {
    const std::size_t stop = text.find('\n', begin);
    if (stop == std::string::npos) break;
    UnitKey unit;
    try {
      const ResultRow row = parse_row(std::string_view(text).substr(begin, stop - begin));
      if (key_of(row) == nullptr) throw Error(ErrorCode::kFormat, "a second run line");
      unit = unit_of(*key_of(row));
    } catch (const Error& e) {
      throw Error(ErrorCode::kFormat,
                  concat("'", path, "':", line, ": ", e.what(), "; the run cannot go on there"));
    }
    if (n_started == 0 || !(unit == plan_[n_started - 1])) {
      if (n_started == plan_.size() || !(unit == plan_[n_started]))
        throw Error(ErrorCode::kInvalidArgument,
                    concat("'", path, "':", line, ": sample ", unit.index, " of task '", unit.task,
                           "' is not what comes next in this run; choose another file"));
      whole = {n_started, begin};
      ++n_started;
      n_rows = 0;
    }
    ++n_rows;
    begin = stop + 1;
    end = begin;
  }
  // The last unit counts if all its rows are there.
  if (n_started > 0 && n_rows == rows_of(n_started - 1)) whole = {n_started, end};
  return whole;
}

void RunLog::append(std::vector<ResultRow> rows, std::span<const TimingRow> times) {
  PRECIS_CHECK(n_done_ < plan_.size() && !rows.empty(), n_done_, " of ", plan_.size());
  std::string text;
  for (const TimingRow& row : times) text += print_row(row) + "\n";
  write_all(times_, text, timing_path(path_));
  text.clear();
  for (ResultRow& row : rows) {
    std::visit(
        [this](auto& r) {
          if constexpr (requires { r.origin; }) r.origin = origin_;
        },
        row);
    PRECIS_CHECK(key_of(row) != nullptr && unit_of(*key_of(row)) == plan_[n_done_], n_done_);
    text += print_row(row) + "\n";
  }
  write_all(results_, text, path_);
  ++n_done_;
}

}  // namespace precis
