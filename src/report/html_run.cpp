// What was run, and single answers.
#include <algorithm>
#include <map>
#include <tuple>

#include "base/error.h"
#include "report/html_sections.h"
#include "report/number_text.h"
#include "report/report_tables.h"

namespace precis {
namespace {

constexpr std::size_t kMostAnswers = 200;
constexpr std::size_t kLongestAnswer = 280;
constexpr std::size_t kMostListed = 60;

std::string entry(const std::string& name, const std::string& html) {
  return "<dt>" + html_text(name) + "</dt><dd>" + html + "</dd>\n";
}

std::string text_entry(const std::string& name, const std::string& text) {
  return entry(name, html_text(shorten(text, 400)));
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

std::string command_of(const RunRow& run) {
  std::string out = "precis eval";
  for (const auto& [name, values] : run.settings) {
    if (values.empty()) out += " --" + name;
    for (const std::string& value : values) out += " --" + name + " " + quoted(value);
  }
  return shorten(out, 4000);
}

std::string list_html(const std::vector<std::string>& items, std::size_t n_all) {
  std::string out = "<ul>\n";
  for (std::size_t i = 0; i < items.size() && i < kMostListed; ++i)
    out += "<li>" + html_text(shorten(items[i], 400)) + "</li>\n";
  const std::size_t n_more = n_all - std::min(items.size(), kMostListed);
  if (n_more > 0) out += concat("<li>and ", n_more, " more</li>\n");
  return out + "</ul>\n";
}

std::string file_of(const RunRow* run, const std::vector<ResultFile>& files) {
  for (const ResultFile& file : files)
    if (&file.run == run) return file.path;
  return "FILE";
}

std::string run_html(const RunRow& run, const std::string& path) {
  std::string out = "<dl>\n";
  out += text_entry("Suite", run.suite);
  out += text_entry("Model", run.model + " (" + run.model_type + ")");
  out +=
      entry("Model file, sha256", "<code>" + html_text(shorten(run.model_sha256, 80)) + "</code>");
  out += text_entry("Precis", run.version + ", commit " + run.commit);
  out += text_entry("Seed", std::to_string(run.seed));
  out += text_entry("Threads", std::to_string(run.threads));
  if (run.n_shards > 1)
    out += text_entry("Shard", concat(run.shard, " of ", run.n_shards, " (the first one read)"));
  std::string inputs;
  for (std::size_t i = 0; i < run.input_sha256.size() && i < kMostListed; ++i)
    inputs += html_text(shorten(run.input_sha256[i].first, 120)) + " <code>" +
              html_text(shorten(run.input_sha256[i].second, 80)) + "</code><br>";
  if (!inputs.empty()) out += entry("Inputs, sha256", inputs);
  out += entry("To repeat it",
               "<code>precis eval --from " + html_text(shorten(quoted(path), 300)) + "</code>");
  out += "</dl>\n";
  out += "<details><summary>The same as a command</summary>\n<pre>" + html_text(command_of(run)) +
         "</pre></details>\n";
  if (!run.left_out.empty())
    out += "<h3>Left out</h3>\n" + list_html(run.left_out, run.left_out.size());
  return out;
}

struct ShownAnswer {
  const ScoreRow* row = nullptr;
  const ScoreRow* other = nullptr;  // of the baseline
  const Variant* variant = nullptr;
  double loss = 0;
};

using Place = std::tuple<std::size_t, std::string, std::string, std::string, std::size_t,
                         std::size_t, std::size_t, std::string>;

Place place_of(std::size_t source, const ScoreRow& row) {
  const RowKey& k = row.key;
  return {source, k.suite, k.query, k.task, k.length, k.index, k.question, row.prompt_sha256};
}

bool is_variant(const Variant& v, const RowKey& k) {
  return v.label == k.label && v.keep == k.keep && v.method == k.method && v.type_k == k.type_k &&
         v.type_v == k.type_v;
}

// All answers with those of their baseline.
std::vector<ShownAnswer> paired_answers(const Summary& summary, const ScoreTable& table) {
  std::vector<std::map<Place, const ScoreRow*>> answers(table.variants.size());
  std::vector<ShownAnswer> out;
  std::vector<std::size_t> variants;
  for (const SourcedRow& sourced : summary.rows) {
    const auto* row = std::get_if<ScoreRow>(sourced.row);
    if (row == nullptr || sourced.source != table.source || row->key.suite != table.suite ||
        row->key.query != table.query)
      continue;
    std::size_t v = 0;
    while (!is_variant(table.variants[v], row->key)) ++v;
    const bool is_baseline =
        std::any_of(table.baselines.begin(), table.baselines.end(),
                    [v](const auto& baseline) { return baseline && *baseline == v; });
    if (is_baseline) answers[v].emplace(place_of(sourced.source, *row), row);
    out.push_back({row, nullptr, &table.variants[v], 0});
    variants.push_back(v);
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto& baseline = table.baselines[variants[i]];
    if (!baseline) continue;
    const auto found = answers[*baseline].find(place_of(table.source, *out[i].row));
    if (found == answers[*baseline].end()) continue;
    out[i].other = found->second;
    out[i].loss = found->second->score - out[i].row->score;
  }
  return out;
}

TableCell text_cell(std::string text) { return {std::move(text), {}, CellMark::kNone}; }

TableCell score_cell(double score) { return {fixed_text(100 * score, 1), score, CellMark::kNone}; }

Table answer_table(const std::vector<ShownAnswer>& answers) {
  Table out;
  out.caption = "Answers, the worst losses against the baseline first";
  out.columns = {{"sample", false, ""},
                 {"method", false, ""},
                 {"score", true, ""},
                 {"baseline's", true, "Score of the baseline's answer."},
                 {"expected", false, ""},
                 {"answer", false, ""},
                 {"answer of the baseline", false, ""}};
  for (const ShownAnswer& shown : answers) {
    const RowKey& key = shown.row->key;
    std::string references;
    for (const std::string& reference : shown.row->references) {
      if (references.size() > kLongestAnswer) break;
      references += (references.empty() ? "" : " | ") + shorten(reference, kLongestAnswer);
    }
    out.rows.push_back(
        {text_cell(shorten(
             concat(setting_text(key.suite, key.query), ", ", task_text(key.task, key.length),
                    ", sample ", key.index, ", question ", key.question),
             200)),
         text_cell(shorten(shown.variant->name, 120)), score_cell(shown.row->score),
         shown.other != nullptr ? score_cell(shown.other->score) : text_cell(""),
         text_cell(shorten(references, kLongestAnswer)),
         text_cell(shorten(shown.row->answer, kLongestAnswer)),
         text_cell(shown.other != nullptr ? shorten(shown.other->answer, kLongestAnswer) : "")});
  }
  return out;
}

}  // namespace

HtmlSection run_section(const Summary& summary, const std::vector<ResultFile>& files,
                        PageState& page) {
  HtmlSection out{"What was run", {}};
  std::size_t n_runs = 0;
  for (const Source& source : summary.sources)
    for (const RunRow* run : source.runs)
      if (n_runs++ < kMostListed) out.body += run_html(*run, file_of(run, files));
  if (n_runs > kMostListed)
    out.body += concat("<p>And ", n_runs - kMostListed, " more runs.</p>\n");
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
    read.rows.push_back(
        {text_cell(shorten(file.path, 200)),
         text_cell(shorten(file.run.suite, 60)),
         text_cell(concat(file.run.shard, " of ", file.run.n_shards)),
         {std::to_string(file.rows.size()), static_cast<double>(file.rows.size()), CellMark::kNone},
         {std::to_string(file.n_skipped), static_cast<double>(file.n_skipped), CellMark::kNone}});
    skipped.insert(skipped.end(), file.skipped.begin(), file.skipped.end());
    n_skipped += file.n_skipped;
  }
  out.body += html_details(concat(files.size(), files.size() == 1 ? " file" : " files", " read"),
                           read, page);
  if (n_skipped > 0)
    out.body += concat("<h3>Skipped lines</h3>\n<p class=\"warning\">", n_skipped,
                       " lines could not be read and are not in this report.</p>\n") +
                list_html(skipped, n_skipped);
  return out;
}

HtmlSection answer_section(const Summary& summary, PageState& page) {
  HtmlSection out{"Single answers", {}};
  std::vector<ShownAnswer> answers;
  std::size_t n_all = 0;
  for (const ScoreTable& table : summary.scores) {
    std::vector<ShownAnswer> of_table = paired_answers(summary, table);
    n_all += of_table.size();
    answers.insert(answers.end(), of_table.begin(), of_table.end());
  }
  if (answers.empty()) return out;
  // Answers that lose nothing are there only if there is room.
  std::stable_sort(answers.begin(), answers.end(), [](const ShownAnswer& a, const ShownAnswer& b) {
    return std::tuple(a.other == nullptr, -a.loss) < std::tuple(b.other == nullptr, -b.loss);
  });
  answers.resize(std::min(answers.size(), kMostAnswers));
  out.body = concat("<p>", answers.size(), " of ", n_all,
                    " answers, shortened. The result files have all of them.</p>\n") +
             "<div class=\"answers\">\n" + html_table(answer_table(answers), page) + "</div>\n";
  return out;
}

}  // namespace precis
