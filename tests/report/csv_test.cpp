#include "report/csv.h"

#include <gtest/gtest.h>

#include <cmath>

#include "report/number_text.h"
#include "report/rows.h"
#include "report/table.h"

namespace precis {
namespace {

TEST(Csv, FieldsAreQuotedAndSafe) {
  EXPECT_EQ(csv_text("plain"), "plain");
  EXPECT_EQ(csv_text(""), "");
  EXPECT_EQ(csv_text("a,b"), "\"a,b\"");
  EXPECT_EQ(csv_text("say \"x\""), "\"say \"\"x\"\"\"");
  EXPECT_EQ(csv_text("two\nlines"), "\"two\nlines\"");
  for (const char* text : {"=1+1", "+1", "-1", "@x", "\tx"})
    EXPECT_EQ(csv_text(text), "'" + std::string(text));
  EXPECT_EQ(csv_text("=a,b"), "\"'=a,b\"");
  EXPECT_EQ(csv_text("\rx"), "\"'\rx\"");
  EXPECT_EQ(csv_text("a=1"), "a=1");
}

// As a reader of RFC 4180 takes them apart.
std::vector<std::vector<std::string>> read_csv(const std::string& text) {
  std::vector<std::vector<std::string>> out = {{""}};
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"' && quoted && i + 1 < text.size() && text[i + 1] == '"') {
      out.back().back() += text[++i];
    } else if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      out.back().emplace_back();
    } else if (c == '\n' && !quoted) {
      out.push_back({""});
    } else {
      out.back().back() += c;
    }
  }
  out.pop_back();
  return out;
}

TEST(Csv, EveryLineHasEveryColumn) {
  ResultFile file;
  file.run = test::some_run();
  file.run.model = "=cmd|' /C calc'!A0\",\n";
  ScoreRow full = test::some_score();
  full.key.label = full.key.method = "full";
  full.key.keep = "100%";
  ScoreRow minus = test::some_score();
  minus.key.label = "-1+1";
  minus.score = 0;
  file.rows = {full, minus, test::some_fidelity(), test::some_timing(), test::some_kept()};
  const std::vector<ResultFile> files = {file};
  const auto lines = read_csv(print_csv(summarise(files)));
  // Task and average of two methods; a text; speed of both, of the timed one and of the text's.
  ASSERT_EQ(lines.size(), 1u + 4 + 1 + 4);
  const auto column = [&lines](const std::string& name) {
    for (std::size_t i = 0; i < lines[0].size(); ++i)
      if (lines[0][i] == name) return i;
    ADD_FAILURE() << name;
    return std::size_t{0};
  };
  for (const auto& line : lines) EXPECT_EQ(line.size(), lines[0].size());
  EXPECT_EQ(lines[1][column("model")], "'=cmd|' /C calc'!A0\",\n");
  EXPECT_EQ(lines[2][column("label")], "'-1+1");
  // A number may begin with a minus.
  EXPECT_EQ(lines[2][column("difference")], "-0.30000000000000004");
  EXPECT_EQ(lines[2][column("distinguishable")], "false");
  EXPECT_EQ(lines[5][column("table")], "fidelity");
  EXPECT_EQ(lines[5][column("log_likelihood_change")], "-0.25");
  EXPECT_EQ(lines[5][column("score")], "");
}

TEST(Csv, CellsOfHeatMaps) {
  ResultFile file;
  file.run = test::some_run();
  KeptRow plain = test::some_kept();
  plain.key.index = 9;
  plain.key.label = "a,b";
  plain.merged.clear();
  plain.bias.clear();
  plain.residual.clear();
  file.rows = {test::some_kept(), test::some_fidelity(), plain, test::some_score()};
  const std::vector<ResultFile> files = {file};
  const auto lines = read_csv(print_cells_csv(summarise(files)));
  ASSERT_EQ(lines.size(), 1u + 6 + 4 + 6);
  for (const auto& line : lines) EXPECT_EQ(line.size(), lines[0].size());
  const auto tail = [&lines](std::size_t i) {
    return std::vector<std::string>(lines[i].begin() + 14, lines[i].end());
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(tail(0), (Texts{"layer", "head", "bin", "first_token", "end_token", "kept", "merged",
                            "bias", "residual", "output_error"}));
  EXPECT_EQ(tail(2), (Texts{"0", "0", "1", "1333", "2666", "0.25", "3.5", "0.7", "0.25", ""}));
  EXPECT_EQ(tail(6), (Texts{"1", "0", "2", "2666", "4000", "0.125", "12", "-1", "0", ""}));
  EXPECT_EQ(lines[7][0], "output_error");
  EXPECT_EQ(tail(8), (Texts{"0", "1", "", "", "", "", "", "", "", "0.2"}));
  EXPECT_EQ(lines[11][9], "a,b");
  EXPECT_EQ(tail(11), (Texts{"0", "0", "0", "0", "1333", "1", "", "", "", ""}));
}

TEST(NumberText, IsTheSameEverywhere) {
  EXPECT_EQ(fixed_text(-0.04, 1), "0.0");
  EXPECT_EQ(fixed_text(12.345, 1), "12.3");
  EXPECT_EQ(fixed_text(1e300, 1), "1.0e+300");
  EXPECT_EQ(fixed_text(std::nan(""), 1), "-");
  EXPECT_EQ(signed_text(0.04, 1), "0.0");
  EXPECT_EQ(signed_text(0.06, 1), "+0.1");
  EXPECT_EQ(signed_text(-3, 1), "-3.0");
  EXPECT_EQ(short_text(0), "0.00");
  EXPECT_EQ(short_text(0.001234), "0.00123");
  EXPECT_EQ(short_text(12.34), "12.3");
  EXPECT_EQ(short_text(45600), "45600");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(bytes_text(1 << 20), "1.0 MiB");
  EXPECT_EQ(bytes_text(7), "7 B");
  EXPECT_EQ(percent_text(0.255), "25.5 %");
  EXPECT_EQ(estimate_text({0.612, Interval{0.551, 0.67}, 9}, 100, 1), "61.2 [55.1, 67.0]");
  EXPECT_EQ(estimate_text({0.612, {}, 1}, 100, 1), "61.2");
  EXPECT_EQ(difference_text({-0.031, Interval{-0.05, 0.002}, 9}, 100, 1), "-3.1 [-5.0, +0.2]");
}

TEST(NumberText, TextsAreCutBetweenCharacters) {
  EXPECT_EQ(shorten("short", 10), "short");
  EXPECT_EQ(shorten("abcdef", 3), "abc...");
  EXPECT_EQ(shorten("a\xE5\x9B\x9B"
                    "b",
                    3),
            "a...");  // three bytes of a character of three begin at 1
  EXPECT_EQ(shorten("a\xE5\x9B\x9B"
                    "b",
                    4),
            "a\xE5\x9B\x9B...");
  EXPECT_EQ(shorten("a\nb\x1b[31m", 20), "a b [31m");
}

TEST(MarkdownText, ShowsWhatItSays) {
  EXPECT_EQ(markdown_text("niah_single_1"), "niah_single_1");
  EXPECT_EQ(markdown_text("_x_"), "\\_x\\_");
  EXPECT_EQ(markdown_text("a|b"), "a\\|b");
  EXPECT_EQ(markdown_text("<b>&`*"), "\\<b\\>\\&\\`\\*");
  EXPECT_EQ(markdown_text("[1, 2]"), "[1, 2]");
  EXPECT_EQ(markdown_text("[x](y)"), "[x\\](y)");
  EXPECT_EQ(markdown_text("two\nlines"), "two lines");
}

TEST(Markdown, ColumnsAreAligned) {
  Table table;
  table.caption = "T";
  table.columns = {{"name", false, ""}, {"n", true, ""}};
  table.rows = {{{"\xC3\xA9t\xC3\xA9", {}, CellMark::kNone}, {"1.5", 1.5, CellMark::kBetter}},
                {{"longer", {}, CellMark::kNone}, {"20", 20.0, CellMark::kNone}}};
  table.notes = {"A note."};
  EXPECT_EQ(print_markdown(table),
            "**T**\n\n"
            "| name   |            n |\n"
            "|--------|-------------:|\n"
            "| \xC3\xA9t\xC3\xA9    | 1.5 (better) |\n"
            "| longer |           20 |\n"
            "\nA note.\n\n");
}

}  // namespace
}  // namespace precis
