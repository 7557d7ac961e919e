// Reports for tests that look at them from outside:
//   make_report html|csv|md|merge AGAINST OUT RESULTS...
// AGAINST may be empty. Files of times beside the results are read, as `precis report` does.
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>

#include "report/csv.h"
#include "report/html_report.h"
#include "report/output_file.h"
#include "report/report_tables.h"
#include "report/result_merge.h"
#include "report/run_log.h"

namespace {

std::string report(const std::string& format, const std::string& against,
                   const std::vector<std::string>& paths) {
  using namespace precis;
  std::vector<ResultFile> files = read_results(paths);
  if (format == "merge") return print_results(merge_results(files));
  for (const std::string& path : paths)
    if (std::filesystem::exists(timing_path(path)))
      files.push_back(read_results(timing_path(path)));
  const Summary summary = summarise(files, {against, {}});
  if (format == "csv") return print_csv(summary);
  if (format == "md") return print_markdown(summary, "Test report");
  return html_report(summary, files, {"Test report"});
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc < 5) return 2;
    precis::write_file(argv[3], report(argv[1], argv[2], {argv + 4, argv + argc}));
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "make_report: %s\n", e.what());
    return 1;
  }
}
