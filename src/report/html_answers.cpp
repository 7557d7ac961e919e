// Single answers.
#include <algorithm>
#include <map>
#include <span>
#include <tuple>

#include "base/error.h"
#include "report/html_sections.h"
#include "report/number_text.h"
#include "report/report_tables.h"

namespace precis {
namespace {

constexpr std::size_t kMostAnswers = 200;
constexpr std::size_t kOpenAnswers = 12;  // the rest is folded away
constexpr std::size_t kLongestAnswer = 280;

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
    if (row == nullptr || !row->is_scored() || sourced.source != table.source ||
        row->key.suite != table.suite || row->key.query != table.query)
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

std::string sample_name(const RowKey& key) {
  return shorten(concat(setting_text(key.suite, key.query), ", ", task_text(key.task, key.length),
                        ", sample ", key.index, ", question ", key.question),
                 200);
}

Table answer_table(std::span<const ShownAnswer> answers, const std::string& caption) {
  Table out;
  out.caption = caption;
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
        {text_cell(sample_name(key)), text_cell(shorten(shown.variant->name, 120)),
         score_cell(shown.row->score),
         shown.other != nullptr ? score_cell(shown.other->score) : text_cell(""),
         text_cell(shorten(references, kLongestAnswer)),
         text_cell(shorten(shown.row->answer, kLongestAnswer)),
         text_cell(shown.other != nullptr ? shorten(shown.other->answer, kLongestAnswer) : "")});
  }
  return out;
}

}  // namespace

HtmlSection unscored_section(const Summary& summary, PageState& page) {
  HtmlSection out{"Answers without a score", {}};
  if (summary.n_unscored == 0) return out;
  // The answers to a question lie together, in the order of the files.
  std::map<Place, std::vector<const SourcedRow*>> questions;
  std::vector<const std::vector<const SourcedRow*>*> order;
  for (const SourcedRow& sourced : summary.rows) {
    const auto* row = std::get_if<ScoreRow>(sourced.row);
    if (row == nullptr || row->is_scored()) continue;
    auto& answers = questions[place_of(sourced.source, *row)];
    if (answers.empty()) order.push_back(&answers);
    answers.push_back(&sourced);
  }
  Table table;
  table.caption = "Answers to questions without a known answer";
  table.columns = {{"question", false, ""},
                   {"method", false, ""},
                   {"kept", true, "Bytes of the condensed cache, of those of the full one."},
                   {"tokens", true, "Length of the answer."},
                   {"answer", false, ""}};
  for (const auto* answers : order) {
    for (const SourcedRow* sourced : *answers) {
      if (table.rows.size() == kMostAnswers) break;
      const auto& row = std::get<ScoreRow>(*sourced->row);
      const double kept = row.kv_bytes_full == 0 ? 0
                                                 : static_cast<double>(row.kv_bytes) /
                                                       static_cast<double>(row.kv_bytes_full);
      table.rows.push_back(
          {text_cell(section_title(summary, sourced->source, sample_name(row.key))),
           text_cell(variant_name(row.key)),
           {percent_text(kept), kept, CellMark::kNone},
           {std::to_string(row.n_answer), static_cast<double>(row.n_answer), CellMark::kNone},
           text_cell(shorten(row.answer, kLongestAnswer))});
    }
  }
  out.body = concat("<p>These questions came without a known answer, so nothing is scored: ",
                    table.rows.size(), " of ", summary.n_unscored,
                    " answers, shortened, one question after the other.</p>\n"
                    "<div class=\"answers\">\n") +
             html_table(table, page) + "</div>\n";
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
  const std::size_t n_open = std::min(answers.size(), kOpenAnswers);
  const std::span<const ShownAnswer> all = answers;
  out.body = concat("<p>", answers.size(), " of ", n_all,
                    " answers, shortened, the worst losses against the baseline first. The result "
                    "files have all of them.</p>\n<div class=\"answers\">\n") +
             html_table(answer_table(all.first(n_open), concat("The first ", n_open)), page);
  if (n_open < answers.size())
    out.body += html_details(concat(answers.size() - n_open, " more"),
                             answer_table(all.subspan(n_open), "Further answers"), page);
  out.body += "</div>\n";
  return out;
}

}  // namespace precis
