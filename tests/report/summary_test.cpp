#include "report/summary.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "report/report_tables.h"
#include "report/rows.h"

namespace precis {
namespace {

struct Answer {
  std::string label = "selkv";
  std::string keep = "25%";
  std::string task = "a";
  std::size_t index = 0;
  double score = 0;
};

ScoreRow row_of(const Answer& answer) {
  ScoreRow row = test::some_score();
  row.key.label = answer.label;
  row.key.method = answer.label;
  row.key.keep = answer.keep;
  row.key.task = answer.task;
  row.key.index = answer.index;
  row.key.question = 0;
  row.key.type_v = "f16";
  row.score = answer.score;
  row.prompt_sha256 = "p" + std::to_string(answer.index);
  return row;
}

ResultFile file_of(std::vector<ResultRow> rows, const std::string& path = "a.jsonl") {
  ResultFile file;
  file.path = path;
  file.run = test::some_run();
  file.rows = std::move(rows);
  return file;
}

// `full` and a method over n samples; the method loses the first n_losses of them.
std::vector<ResultRow> two_methods(std::size_t n, std::size_t n_losses,
                                   const std::string& task = "a") {
  std::vector<ResultRow> rows;
  for (std::size_t i = 0; i < n; ++i) {
    rows.push_back(row_of({"full", "100%", task, i, 1}));
    rows.push_back(row_of({"selkv", "25%", task, i, i < n_losses ? 0.0 : 1.0}));
  }
  return rows;
}

std::string refusal(const std::vector<ResultFile>& files, const std::string& against = "") {
  try {
    summarise(files, {against, {}});
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
    return e.what();
  }
  return "accepted";
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Summary, WordsFollowFromTheInterval) {
  const auto verdict = [](std::size_t n, std::size_t n_losses) {
    const std::vector<ResultFile> files = {file_of(two_methods(n, n_losses))};
    const Summary s = summarise(files);
    const ScoreCell& cell = *s.scores.at(0).tasks.at(0).cells.at(1);
    EXPECT_EQ(cell.against->losses, n_losses);
    EXPECT_DOUBLE_EQ(cell.against->difference.value,
                     -static_cast<double>(n_losses) / static_cast<double>(n));
    return verdict_text(*cell.against, "full");
  };
  EXPECT_EQ(verdict(30, 0), "not distinguishable from full (no sample differs)");
  EXPECT_EQ(verdict(30, 2), "not distinguishable from full");
  EXPECT_EQ(verdict(30, 20), "worse than full");
  EXPECT_EQ(verdict(5, 5), "not distinguishable from full (only 5 samples differ)");
}

TEST(Summary, OneTaskAndAverages) {
  std::vector<ResultRow> rows = two_methods(10, 5);
  for (ResultRow& row : two_methods(2, 0, "b")) rows.push_back(row);
  const std::vector<ResultFile> files = {file_of(rows)};
  const Summary s = summarise(files);
  ASSERT_EQ(s.scores.size(), 1u);
  const ScoreTable& table = s.scores[0];
  ASSERT_EQ(table.tasks.size(), 2u);
  EXPECT_EQ(table.variants[0].name, "full");
  EXPECT_EQ(table.variants[1].name, "selkv @ 25%");
  ASSERT_EQ(table.averages.size(), 1u);
  const ScoreCell& average = *table.averages[0].cells[1];
  EXPECT_DOUBLE_EQ(average.score.value, 0.75);  // (0.5 + 1) / 2: tasks count alike
  EXPECT_DOUBLE_EQ(average.against->difference.value, -0.25);
  EXPECT_EQ(average.against->ties, 7u);
  EXPECT_DOUBLE_EQ(average.kept_share, 0.25);
  EXPECT_DOUBLE_EQ(*table.averages[0].chance, 0.25);
  EXPECT_EQ(table.averages[0].n_tasks[1], 2u);
}

TEST(Summary, OtherSpecsBudgetsAndTypesAreOtherVariants) {
  std::vector<ResultRow> rows;
  for (std::size_t i = 0; i < 3; ++i) {
    ScoreRow row = row_of({"selkv", "25%", "a", i, 1});
    rows.push_back(row);
    row.key.type_k = row.key.type_v = "q8_0";
    rows.push_back(row);
    row.key.type_v = "q4";
    rows.push_back(row);
    row.key.method = "selkv(alpha=1)";
    rows.push_back(row);
    row.key.keep = "50%";
    rows.push_back(row);
  }
  const std::vector<ResultFile> files = {file_of(rows)};
  const Summary s = summarise(files);
  std::vector<std::string> names;
  for (const Variant& v : s.scores.at(0).variants) names.push_back(v.name);
  EXPECT_EQ(names, (std::vector<std::string>{
                       "selkv = selkv (f16) @ 25%", "selkv = selkv (q8_0) @ 25%",
                       "selkv = selkv (q8_0/q4) @ 25%", "selkv = selkv(alpha=1) (q8_0/q4) @ 25%",
                       "selkv = selkv(alpha=1) (q8_0/q4) @ 50%"}));
  for (const auto& cell : s.scores[0].tasks.at(0).cells) EXPECT_EQ(cell->n_samples, 3u);
}

TEST(Summary, BaselinesHaveTheSameTypesIfTheyCan) {
  std::vector<ResultRow> rows;
  for (const char* label : {"full", "selkv"}) {
    for (const char* type : {"f16", "q8_0", "q4"}) {
      if (std::string(label) == "full" && std::string(type) == "q4") continue;
      ScoreRow row = row_of({label, label == std::string("full") ? "100%" : "25%", "a", 0, 1});
      row.key.type_k = row.key.type_v = type;
      rows.push_back(row);
    }
  }
  const std::vector<ResultFile> files = {file_of(rows)};
  const Summary s = summarise(files);
  const ScoreTable& t = s.scores.at(0);
  std::vector<std::string> pairs;
  for (std::size_t v = 0; v < t.variants.size(); ++v)
    pairs.push_back(t.variants[v].name + ": " +
                    (t.baselines[v] ? t.variants[*t.baselines[v]].name : "none"));
  EXPECT_EQ(pairs, (std::vector<std::string>{
                       "full (f16): none", "full (q8_0): none", "selkv (f16) @ 25%: full (f16)",
                       "selkv (q8_0) @ 25%: full (q8_0)", "selkv (q4) @ 25%: full (f16)"}));
}

TEST(Summary, OnlyTheSamePromptsArePairs) {
  std::vector<ResultRow> rows = two_methods(10, 10);
  std::get<ScoreRow>(rows[1]).prompt_sha256 = "another";
  rows.erase(rows.begin() + 2);  // the full cache's answer to sample 1
  const std::vector<ResultFile> files = {file_of(rows)};
  const Summary s = summarise(files);
  const ScoreCell& cell = *s.scores.at(0).tasks.at(0).cells.at(1);
  EXPECT_EQ(cell.unpaired, 2u);
  EXPECT_EQ(cell.against->losses, 8u);
  EXPECT_EQ(cell.n_samples, 10u);
  ASSERT_FALSE(s.notes.empty());
  EXPECT_TRUE(has(s.notes.back(), "2 answers have no answer of the baseline")) << s.notes.back();
}

TEST(Summary, LongerAnswersAreCounted) {
  std::vector<ResultRow> rows = two_methods(4, 0);
  const std::size_t lengths[] = {10, 14, 15, 40};  // of 10
  for (std::size_t i = 0; i < 4; ++i) {
    std::get<ScoreRow>(rows[2 * i]).n_answer = 10;
    std::get<ScoreRow>(rows[2 * i + 1]).n_answer = lengths[i];
  }
  const std::vector<ResultFile> files = {file_of(rows)};
  const Summary s = summarise(files);
  EXPECT_DOUBLE_EQ(*s.scores.at(0).tasks.at(0).cells.at(1)->longer_answers, 0.5);
}

TEST(Summary, RowsOfTwoFiles) {
  const std::vector<ResultRow> rows = two_methods(4, 1);
  EXPECT_EQ(refusal({file_of(rows), file_of(rows, "b.jsonl")}), "accepted");
  const std::vector<ResultFile> twice = {file_of(rows), file_of(rows, "b.jsonl")};
  const Summary s = summarise(twice);
  EXPECT_EQ(s.rows.size(), rows.size());
  EXPECT_TRUE(has(s.notes.at(0), "8 rows are in the files more than once"));
  std::vector<ResultRow> changed = rows;
  std::get<ScoreRow>(changed[0]).score = 0.5;
  const std::string message = refusal({file_of(rows), file_of(changed, "b.jsonl")});
  EXPECT_TRUE(has(message, "'a.jsonl' and 'b.jsonl' have different rows for ruler a")) << message;
  // Another seed draws other samples: another source.
  std::vector<ResultFile> seeds = {file_of(rows), file_of(changed, "b.jsonl")};
  seeds[1].run.seed = 7;
  const Summary two = summarise(seeds);
  ASSERT_EQ(two.sources.size(), 2u);
  EXPECT_EQ(two.sources[1].name, "small.gguf, seed 7");
  EXPECT_EQ(two.scores.size(), 2u);
  EXPECT_EQ(two.scores[0].source, 0u);
}

TEST(Summary, WhatAReaderMustKnowIsNoted) {
  std::vector<ResultFile> files = {file_of(two_methods(4, 1)), file_of({}, "b.jsonl")};
  files[0].run.n_shards = files[1].run.n_shards = 3;
  files[1].run.shard = 2;
  const Summary shards = summarise(files);
  EXPECT_TRUE(has(shards.notes.at(0), "Only 2 of the 3 shards"));
  files[0].run.n_shards = 1;
  files[1].run.n_shards = files[1].run.shard = 1;
  files[1].run.commit = "another";
  const Summary builds = summarise(files);
  EXPECT_TRUE(has(builds.notes.at(0), "different builds: 0.1.0 (0123456789), 0.1.0 (another)"));
}

TEST(Summary, UnknownBaselinesAreRefused) {
  const std::vector<ResultFile> files = {file_of(two_methods(4, 1))};
  EXPECT_EQ(refusal(files, "selkv"), "accepted");
  EXPECT_EQ(refusal(files, "full@100%"), "accepted");
  EXPECT_EQ(refusal(files, "snapkv"),
            "no row is of the baseline 'snapkv'; there are: full@100%, selkv@25%");
  EXPECT_TRUE(has(refusal(files, "full@50%"), "'full@50%'"));
  EXPECT_TRUE(has(refusal(files, "@"), "'@'"));
}

TEST(Summary, AnswersWithoutReferencesAreNotScored) {
  std::vector<ResultRow> rows = two_methods(4, 0);
  for (const char* label : {"full", "selkv"}) {
    ScoreRow row = row_of({label, std::string(label) == "full" ? "100%" : "25%", "a", 0, 0});
    row.key.question = 1;
    row.references.clear();
    row.metric = "contain_any";
    rows.push_back(row);
  }
  const std::vector<ResultFile> files = {file_of(rows)};
  const Summary s = summarise(files);
  EXPECT_EQ(s.n_unscored, 2u);
  ASSERT_EQ(s.scores.size(), 1u);
  ASSERT_EQ(s.scores[0].tasks.size(), 1u);
  for (const auto& cell : s.scores[0].tasks[0].cells) {
    EXPECT_EQ(cell->score.value, 1);
    EXPECT_EQ(cell->n_answers, 4u);
  }
  ASSERT_EQ(s.notes.size(), 1u);
  EXPECT_TRUE(has(s.notes[0], "2 answers are to questions without a known answer"));
  EXPECT_EQ(s.timing.size(), 1u);
  // Nothing but such answers: no table of scores.
  const std::vector<ResultFile> none = {file_of({rows[8], rows[9]})};
  EXPECT_TRUE(summarise(none).scores.empty());
}

TEST(Summary, TooManyVariantsAreRefused) {
  std::vector<ResultRow> rows;
  for (int i = 0; i < 501; ++i) rows.push_back(row_of({"m" + std::to_string(i), "25%", "a", 0, 1}));
  EXPECT_TRUE(has(refusal({file_of(rows)}), "more than 500 combinations"));
}

TEST(Summary, NothingIsNotAnError) {
  const std::vector<ResultFile> files = {file_of({})};
  const Summary s = summarise(files);
  EXPECT_TRUE(s.scores.empty() && s.fidelity.empty() && s.timing.empty());
  EXPECT_EQ(s.sources.size(), 1u);
  EXPECT_EQ(summarise({}).sources.size(), 0u);
}

TEST(Summary, MarkdownIsReadable) {
  std::vector<ResultRow> rows = two_methods(30, 20);
  rows.push_back(row_of({"a|b", "10%", "a", 0, 1}));
  const std::vector<ResultFile> files = {file_of(rows)};
  const std::string text = print_markdown(summarise(files), "Title *x*");
  EXPECT_EQ(text.substr(0, 14), "# Title \\*x\\*\n");
  EXPECT_TRUE(has(text, "**ruler, question unknown while condensing: average over tasks**"));
  EXPECT_TRUE(has(text, "worse than full"));
  EXPECT_TRUE(has(text, "| a\\|b @ 10% "));
  EXPECT_TRUE(has(text, "33.3 [16.7, 50.0]"));
  EXPECT_TRUE(has(text, "33.3 (worse)"));
}

}  // namespace
}  // namespace precis
