// What was run.
#include <algorithm>
#include <set>

#include "base/error.h"
#include "report/html_sections.h"
#include "report/number_text.h"

namespace precis {
namespace {

constexpr std::size_t kMostListed = 60;

TableCell text_cell(std::string text) { return {std::move(text), {}, CellMark::kNone}; }

TableCell count_cell(std::size_t n) {
  return {std::to_string(n), static_cast<double>(n), CellMark::kNone};
}

std::string entry(const std::string& name, const std::string& html) {
  return "<dt>" + html_text(name) + "</dt><dd>" + html + "</dd>\n";
}

std::string code_html(const std::string& text, std::size_t most_bytes) {
  return "<code>" + html_text(shorten(text, most_bytes)) + "</code>";
}

// As it is typed in a shell.
std::string quoted(const std::string& word) {
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("-_./,:=%@+").find(c) != std::string_view::npos;
  });
  if (plain) return word;
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

// Settings do not repeat what has fields of its own.
std::string command_of(const RunRow& run) {
  std::string out = "precis eval " + quoted(run.suite) + " " + quoted("--model=" + run.model) +
                    concat(" --seed=", run.seed, " --threads=", run.threads);
  for (const auto& [name, values] : run.settings) {
    if (name == "model" || name == "seed" || name == "threads" || name == "suite") continue;
    for (const std::string& value : values) out += " " + quoted("--" + name + "=" + value);
  }
  return out + " --output=results.jsonl";
}

std::string list_html(const std::vector<std::string>& items, std::size_t n_all) {
  std::string out = "<ul>\n";
  for (std::size_t i = 0; i < items.size() && i < kMostListed; ++i)
    out += "<li>" + html_text(shorten(items[i], 400)) + "</li>\n";
  const std::size_t n_more = n_all - std::min(items.size(), kMostListed);
  if (n_more > 0) out += concat("<li>and ", n_more, " more</li>\n");
  return out + "</ul>\n";
}

std::string source_html(const Source& source) {
  return "<dl>\n" +
         entry("Model", html_text(shorten(source.model, 300) + " (" +
                                  shorten(source.model_type, 100) + ")")) +
         entry("Model file, sha256", code_html(source.model_sha256, 80)) +
         entry("Seed", std::to_string(source.seed)) + "</dl>\n";
}

Table run_table(const Source& source) {
  Table out;
  out.caption = "Runs";
  out.columns = {{"suite", false, ""},
                 {"Precis", false, ""},
                 {"commit", false, ""},
                 {"threads", true, ""},
                 {"shards", true, "Of which the files may be a part."},
                 {"left out", true, "Tasks that could not be run."}};
  for (std::size_t i = 0; i < source.runs.size() && i < kMostListed; ++i) {
    const RunRow& run = *source.runs[i];
    out.rows.push_back({text_cell(shorten(run.suite, 60)), text_cell(shorten(run.version, 30)),
                        text_cell(shorten(run.commit, 60)), count_cell(run.threads),
                        count_cell(run.n_shards), count_cell(run.left_out.size())});
  }
  if (source.runs.size() > kMostListed)
    out.notes.push_back(concat("And ", source.runs.size() - kMostListed, " more runs."));
  return out;
}

std::string settings_html(const RunRow& run) {
  std::string out = "<details><summary>The command of suite " + html_text(shorten(run.suite, 60)) +
                    "</summary>\n<pre>" + html_text(shorten(command_of(run), 4000)) + "</pre>\n";
  std::string inputs;
  for (std::size_t i = 0; i < run.input_sha256.size() && i < kMostListed; ++i)
    inputs +=
        entry(shorten(run.input_sha256[i].first, 120), code_html(run.input_sha256[i].second, 80));
  if (!inputs.empty()) out += "<p>Inputs with their sha256:</p>\n<dl>\n" + inputs + "</dl>\n";
  return out + "</details>\n";
}

std::string files_html(const std::vector<ResultFile>& files, PageState& page) {
  Table read;
  read.caption = "Files";
  read.columns = {{"file", false, ""},
                  {"suite", false, ""},
                  {"shard", true, ""},
                  {"rows", true, ""},
                  {"lines skipped", true, ""}};
  std::vector<std::string> skipped;
  std::size_t n_skipped = 0;
  for (const ResultFile& file : files) {
    read.rows.push_back({text_cell(shorten(file.path, 200)), text_cell(shorten(file.run.suite, 60)),
                         text_cell(concat(file.run.shard, " of ", file.run.n_shards)),
                         count_cell(file.rows.size()), count_cell(file.n_skipped)});
    skipped.insert(skipped.end(), file.skipped.begin(), file.skipped.end());
    n_skipped += file.n_skipped;
  }
  std::string out = html_details(
      concat(files.size(), files.size() == 1 ? " file read" : " files read"), read, page);
  if (n_skipped > 0)
    out += concat("<h3>Skipped lines</h3>\n<p class=\"warning\">", n_skipped,
                  n_skipped == 1 ? " line" : " lines",
                  " could not be read and took no part in this report.</p>\n") +
           list_html(skipped, n_skipped);
  return out;
}

}  // namespace

HtmlSection run_section(const Summary& summary, const std::vector<ResultFile>& files,
                        PageState& page) {
  HtmlSection out{"What was run", {}};
  std::vector<std::string> left_out;
  std::set<std::string> known;
  std::size_t n_runs = 0;
  for (const Source& source : summary.sources) {
    if (n_runs >= kMostListed) continue;
    out.body += source_html(source) + html_table(run_table(source), page);
    for (const RunRow* run : source.runs) {
      if (n_runs++ < kMostListed) out.body += settings_html(*run);
      for (const std::string& task : run->left_out)
        if (const std::string text = run->suite + ": " + task; known.insert(text).second)
          left_out.push_back(text);
    }
  }
  out.body += files_html(files, page);
  if (!left_out.empty()) out.body += "<h3>Left out</h3>\n" + list_html(left_out, left_out.size());
  return out;
}

}  // namespace precis
