#include "report/result_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "base/error.h"

namespace precis {
namespace {

constexpr std::size_t kMostListed = 1000;
constexpr std::size_t kBlockBytes = std::size_t{1} << 20;

// Calls take(line, too_long) for every line; of one that is too long the text is dropped.
void read_lines(const std::string& path,
                const std::function<void(const std::string&, bool)>& take) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    throw Error(ErrorCode::kIo, concat("'", path, "' is a directory, not a file"));
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             std::fclose);
  if (!file)
    throw Error(ErrorCode::kIo, concat("cannot open '", path, "': ", std::strerror(errno)));
  std::vector<char> block(kBlockBytes);
  std::string line;
  bool too_long = false;
  std::size_t total = 0;
  while (const std::size_t n = std::fread(block.data(), 1, block.size(), file.get())) {
    total += n;
    if (total > kMostResultBytes)
      throw Error(ErrorCode::kFormat, concat("'", path, "' has more than ", kMostResultBytes,
                                             " bytes, which no result file needs"));
    std::string_view rest(block.data(), n);
    while (!rest.empty()) {
      const std::size_t end = rest.find('\n');
      const std::string_view part = rest.substr(0, end);
      too_long = too_long || line.size() + part.size() > kMostLineBytes;
      if (too_long)
        line.clear();
      else
        line += part;
      if (end == std::string_view::npos) break;
      take(line, too_long);
      line.clear();
      too_long = false;
      rest.remove_prefix(end + 1);
    }
  }
  if (std::ferror(file.get()) != 0)
    throw Error(ErrorCode::kIo, concat("cannot read '", path, "': ", std::strerror(errno)));
  if (!line.empty() || too_long) take(line, too_long);
}

bool is_blank(const std::string& line) {
  return line.find_first_not_of(" \t\r") == std::string::npos;
}

class Collector {
 public:
  Collector(ResultFile& to, bool strict) : to_(to), strict_(strict) {}

  void take(const std::string& line, bool too_long) {
    ++number_;
    if (!too_long && is_blank(line)) return;
    if (std::optional<ResultRow> row = parse(line, too_long)) add(std::move(*row));
  }

  bool has_run() const { return has_run_; }

 private:
  std::string place() const { return concat(to_.path, ":", number_, ": "); }

  std::optional<ResultRow> parse(const std::string& line, bool too_long) {
    std::string why = concat("the line has more than ", kMostLineBytes, " bytes");
    try {
      if (!too_long) return parse_row(line);
    } catch (const Error& e) {
      why = e.what();
    }
    if (strict_) throw Error(ErrorCode::kFormat, place() + why);
    ++to_.n_skipped;
    if (to_.skipped.size() < kMostListed) to_.skipped.push_back(place() + why);
    return {};
  }

  // Faults of the file, not of a line: skipping would put rows under the wrong run.
  void add(ResultRow row) {
    auto* run = std::get_if<RunRow>(&row);
    if (run != nullptr && has_run_)
      throw Error(ErrorCode::kFormat,
                  place() + "a second 'run' row; a file holds one run, give each its own file");
    if (run == nullptr && !has_run_)
      throw Error(ErrorCode::kFormat,
                  place() + "a row before the 'run' row, which says what was run");
    if (run != nullptr)
      to_.run = std::move(*run);
    else
      to_.rows.push_back(std::move(row));
    has_run_ = true;
  }

 private:
  ResultFile& to_;
  bool strict_;
  std::size_t number_ = 0;
  bool has_run_ = false;
};

}  // namespace

ResultFile read_results(const std::string& path, bool strict) {
  ResultFile out;
  out.path = path;
  Collector collector(out, strict);
  read_lines(path, [&collector](const std::string& line, bool too_long) {
    collector.take(line, too_long);
  });
  if (!collector.has_run())
    throw Error(ErrorCode::kFormat,
                concat("'", path, "' has no 'run' row: it is no result file of Precis",
                       out.skipped.empty() ? "" : "; " + out.skipped.front()));
  return out;
}

std::vector<ResultFile> read_results(const std::vector<std::string>& paths, bool strict) {
  std::vector<ResultFile> out;
  for (const std::string& path : paths) out.push_back(read_results(path, strict));
  return out;
}

std::string print_results(const ResultFile& file) {
  std::string out = print_row(file.run) + '\n';
  for (const ResultRow& row : file.rows) out += print_row(row) + '\n';
  return out;
}

}  // namespace precis
