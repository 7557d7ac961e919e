#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "app/commands.h"
#include "base/error.h"
#include "report/csv.h"
#include "report/html_report.h"
#include "report/number_text.h"
#include "report/output_file.h"
#include "report/report_tables.h"
#include "report/result_merge.h"
#include "report/run_difference.h"
#include "report/run_log.h"
#include "report/summary.h"

namespace precis::app {
namespace {

struct ReportCommand {
  std::vector<std::string> results;
  std::string output;
  std::string format = "html";
  std::string against;
  std::string title = "Precis evaluation";
  bool strict = false;
};

struct MergeCommand {
  std::vector<std::string> shards;
  std::string output;
  bool allow_partial = false;
};

bool exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

// Times of another run would be shown as those of this one.
void check_times(const ResultFile& results, const ResultFile& times) {
  const bool same_shard = results.run.shard == times.run.shard;
  const auto difference = run_difference_beside_shard(results.run, times.run);
  if (!difference && same_shard) return;
  throw Error(
      ErrorCode::kFormat,
      concat("'", times.path, "' is not of the run of '", results.path, "': ",
             difference ? *difference
                        : concat("it is of shard ", times.run.shard, ", not ", results.run.shard),
             "; move it away, or name the file that it belongs to"));
}

// Results first, so that what the report names as the file of a run is one that can be run again.
std::vector<ResultFile> read_all(const ReportCommand& command) {
  std::vector<ResultFile> files = read_results(command.results, command.strict);
  for (std::size_t i = 0; i < command.results.size(); ++i) {
    const std::string times = timing_path(command.results[i]);
    const auto& named = command.results;
    if (!exists(times) || std::find(named.begin(), named.end(), times) != named.end()) continue;
    files.push_back(read_results(times, command.strict));
    check_times(files[i], files.back());
  }
  return files;
}

// Also through links and other names of a folder.
bool is_same_file(const std::string& a, const std::string& b) {
  std::error_code ignored;
  return a == b || std::filesystem::equivalent(a, b, ignored);
}

// Hours of measuring are not to be lost to a slip of the hand.
void check_output(const std::string& output, const std::vector<std::string>& inputs) {
  if (output.empty() || output == "-") return;
  for (const std::string& input : inputs)
    for (const std::string& kept : {input, timing_path(input)})
      if (is_same_file(output, kept))
        throw Error(ErrorCode::kInvalidArgument,
                    concat("the output '", output, "' is one of the result files that are read"));
}

void put_out(const std::string& path, const std::string& text) {
  if (!path.empty() && path != "-")
    write_file(path, text);
  else if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size())
    throw Error(ErrorCode::kIo, "cannot write the output");
}

void report(const ReportCommand& command) {
  check_output(command.output, command.results);
  const std::vector<ResultFile> files = read_all(command);
  const Summary summary = summarise(files, {command.against, {}});
  if (command.format == "csv")
    put_out(command.output, print_csv(summary));
  else if (command.format == "cells")
    put_out(command.output, print_cells_csv(summary));
  else if (command.format == "md")
    put_out(command.output, print_markdown(summary, command.title));
  else
    put_out(command.output, html_report(summary, files, {command.title}));
  for (const ResultFile& file : files)
    if (file.n_skipped > 0)
      // Both texts may hold terminal sequences.
      std::fprintf(stderr, "precis: %s: %zu malformed lines skipped, the first: %s\n",
                   shorten(file.path, 300).c_str(), file.n_skipped,
                   shorten(file.skipped.front(), 300).c_str());
}

// "part*.jsonl" names the files of times too; they are read with the results that they belong to.
std::vector<std::string> without_times(const std::vector<std::string>& paths) {
  std::vector<std::string> out;
  for (const std::string& path : paths)
    if (std::none_of(paths.begin(), paths.end(),
                     [&path](const std::string& other) { return timing_path(other) == path; }))
      out.push_back(path);
  return out;
}

// A partial merge may hold a line that was cut off; a whole one must not.
void merge(const MergeCommand& command) {
  const std::vector<std::string> shards = without_times(command.shards);
  check_output(command.output, shards);
  if (command.output != "-") check_output(timing_path(command.output), shards);
  const bool strict = !command.allow_partial;
  const ResultFile merged = merge_results(read_results(shards, strict), command.allow_partial);
  std::vector<std::string> times;
  for (const std::string& shard : shards)
    if (exists(timing_path(shard))) times.push_back(timing_path(shard));
  // Times are an extra: they are merged when every shard has them.
  const bool with_times = times.size() == shards.size();
  std::string merged_times;
  if (with_times)
    merged_times = print_results(merge_results(read_results(times, strict), command.allow_partial));
  put_out(command.output, print_results(merged));
  if (with_times && command.output != "-") write_file(timing_path(command.output), merged_times);
  if (!times.empty() && !with_times)
    std::fprintf(stderr, "precis: %zu of %zu shards have files of times: times are not merged\n",
                 times.size(), shards.size());
}

}  // namespace

Command add_report(CLI::App& parent) {
  auto o = std::make_shared<ReportCommand>();
  auto m = std::make_shared<MergeCommand>();
  CLI::App* c = parent.add_subcommand(
      "report",
      "Tables and an HTML page of what 'precis eval' found; see docs/EVALUATION_REPORT.md");
  c->add_option(
      "RESULTS", o->results,
      "Result files; of a.jsonl the times in a.timing.jsonl are read too, if it is there");
  c->add_option("-o,--output", o->output, "File to write (default: standard output)");
  c->add_option("--format", o->format,
                "html, md, csv (all figures), or cells (CSV of all heat maps)")
      ->capture_default_str()
      ->check(CLI::IsMember({"html", "md", "csv", "cells"}));
  c->add_option("--against", o->against,
                "Baseline of differences: LABEL or LABEL@KEEP (default: full)")
      ->envname("PRECIS_ARG_AGAINST");
  c->add_flag("--strict", o->strict, "Refuse files with malformed lines instead of skipping those");
  c->add_option("--title", o->title, "Title of the report")->capture_default_str();
  CLI::App* sub = c->add_subcommand(
      "merge", "Put the shards of one run together, as the whole run would have written them");
  sub->add_option("SHARDS", m->shards, "Result files of all shards, in any order")->required();
  sub->add_option("-o,--output", m->output, "File to write")->required();
  sub->add_flag("--allow-partial", m->allow_partial,
                "Merge what is there when shards or samples are missing");
  return [o, m, sub] {
    if (sub->parsed()) return merge(*m);
    if (o->results.empty())
      throw Error(ErrorCode::kInvalidArgument,
                  "RESULTS is required: a result file of 'precis eval', or several");
    report(*o);
  };
}

}  // namespace precis::app
