#include "report/html_report.h"

#include <gtest/gtest.h>

#include <cctype>
#include <optional>
#include <regex>
#include <set>

#include "report/html_style.h"
#include "report/html_text.h"
#include "report/rows.h"
#include "report/svg_chart.h"
#include "report/svg_figure.h"
#include "report/svg_heatmap.h"

namespace precis {
namespace {

// Not by a regular expression: the library's recurses for each character, and attributes are long.
struct Tag {
  std::string name;
  bool closes = false;    // </name>
  bool is_empty = false;  // <name/>
};

bool is_letter(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-'; }

// The tag whose '<' is at `at`, with attributes name="value" or name; nothing if it is malformed.
std::optional<Tag> read_tag(const std::string& page, std::size_t at) {
  Tag tag;
  const auto next = [&] { return at < page.size() ? page[at] : '\0'; };
  const auto take = [&](char c) {
    if (next() != c) return false;
    ++at;
    return true;
  };
  const auto word = [&] {
    const std::size_t begin = at;
    while (is_letter(next())) ++at;
    return page.substr(begin, at - begin);
  };
  if (!take('<')) return {};
  tag.closes = take('/');
  if (take('!')) tag.name = "!";
  tag.name += word();
  if (tag.name.empty()) return {};
  while (take(' ')) {
    if (word().empty()) return {};
    if (!take('=')) continue;
    if (!take('"')) return {};
    while (next() != '"' && next() != '<' && next() != '\0') ++at;
    if (!take('"')) return {};
  }
  tag.is_empty = take('/');
  if (!take('>')) return {};
  return tag;
}

void cut_out(std::string& page, const std::string& element) {
  const std::string begin = "<" + element + ">", end = "</" + element + ">";
  for (std::size_t at = page.find(begin); at != std::string::npos; at = page.find(begin))
    page.erase(at, page.find(end, at) + end.size() - at);
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

std::string page_of(const std::vector<ResultFile>& files) {
  return html_report(summarise(files), files);
}

// n_samples of tasks, for methods at budgets; with times and answers of `answer_bytes`.
ResultFile large_file(std::size_t n_tasks, std::size_t n_samples, std::size_t answer_bytes) {
  ResultFile file;
  file.path = "large.jsonl";
  file.run = test::some_run();
  const std::pair<const char*, const char*> methods[] = {
      {"full", "100%"}, {"selkv", "25%"}, {"selkv", "10%"}, {"snapkv", "25%"}, {"snapkv", "10%"}};
  for (std::size_t t = 0; t < n_tasks; ++t) {
    for (std::size_t i = 0; i < n_samples; ++i) {
      for (const auto& [label, keep] : methods) {
        ScoreRow row = test::some_score();
        row.key.task = "task_" + std::to_string(t);
        row.key.index = i;
        row.key.label = row.key.method = label;
        row.key.keep = keep;
        row.score = static_cast<double>((i * 7 + t) % 10) / 10;
        row.answer = std::string(answer_bytes, 'x');
        file.rows.push_back(row);
      }
    }
  }
  return file;
}

TEST(HtmlText, NothingIsMarkup) {
  EXPECT_EQ(html_text("<a href='x'>&\"</a>"), "&lt;a href=&#39;x&#39;&gt;&amp;&quot;&lt;/a&gt;");
  EXPECT_EQ(html_text(std::string("a\0b\x1b", 4)), "a b ");
  EXPECT_EQ(html_text("\xE5\x9B\x9B\n\t"), "\xE5\x9B\x9B\n\t");
}

TEST(HtmlText, LevelsOfHeat) {
  EXPECT_EQ(heat_level(0, 0, 1), 0);
  EXPECT_EQ(heat_level(0.0999, 0, 1), 0);
  EXPECT_EQ(heat_level(0.55, 0, 1), 5);
  EXPECT_EQ(heat_level(1, 0, 1), 9);
  EXPECT_EQ(heat_level(7, 0, 1), 9);
  EXPECT_EQ(heat_level(-7, 0, 1), 0);
  EXPECT_EQ(heat_level(3, 3, 3), 9);
  EXPECT_EQ(heat_level(0, 0, 0), 0);
}

TEST(HtmlReport, HasAllPartsAndNeedsNothing) {
  ResultFile file;
  file.path = "a&b.jsonl";
  file.run = test::some_run();
  ScoreRow full = test::some_score();
  full.key.label = full.key.method = "full";
  full.key.keep = "100%";
  file.rows = {full, test::some_score(), test::some_fidelity(), test::some_timing(),
               test::some_kept()};
  file.skipped = {"a&b.jsonl:7: field 'score' is missing"};
  file.n_skipped = 1;
  const std::string page = page_of({file});
  for (const char* part :
       {"What was run", "precis eval ruler --model=small.gguf --seed=42 --threads=2 --method=full",
        "a&amp;b.jsonl", "qa_1: no file is given",
        "a&amp;b.jsonl:7: field &#39;score&#39; is missing",
        "ruler, question unknown while condensing", "Fidelity", "Speed and memory", "What was kept",
        "Single answers", "How to read this", "aaaaaaaa", "guessing: 25.0", "One day"})
    EXPECT_TRUE(has(page, part)) << part;
  // Nothing that a browser would load, and no style or handler inside of an element.
  const std::string body = page.substr(page.find("<body>"));
  for (const char* part : {"http:", "https:", "url(", "@import", "<link", "<img",
                           " src=", " style=", "onclick=", "<iframe", "<object"})
    EXPECT_FALSE(has(body.substr(0, body.find("<script>")), part)) << part;
  EXPECT_FALSE(has(report_style(), "url("));
  EXPECT_TRUE(has(page, "default-src 'none'"));
}

TEST(HtmlReport, TheSameInputGivesTheSamePage) {
  const std::vector<ResultFile> files = {large_file(2, 8, 10)};
  EXPECT_EQ(page_of(files), page_of(files));
}

// Elements open and close in order; attributes are quoted.
TEST(HtmlReport, IsWellFormed) {
  ResultFile file = large_file(3, 4, 20);
  file.rows.push_back(test::some_kept());
  file.rows.push_back(test::some_fidelity());
  std::string page = page_of({file});
  for (const std::string element : {"script", "style"}) cut_out(page, element);
  std::vector<std::string> open;
  std::size_t n = 0;
  for (std::size_t at = page.find('<'); at != std::string::npos; at = page.find('<', at + 1), ++n) {
    const std::optional<Tag> tag = read_tag(page, at);
    ASSERT_TRUE(tag.has_value()) << page.substr(at, 60);
    if (tag->name == "!DOCTYPE" || tag->name == "meta" || tag->is_empty) continue;
    if (tag->closes) {
      ASSERT_FALSE(open.empty());
      ASSERT_EQ(open.back(), tag->name);
      open.pop_back();
    } else {
      open.push_back(tag->name);
    }
  }
  EXPECT_TRUE(open.empty());
  EXPECT_GT(n, 100u);
}

// How long it takes: tests/report/measure_report.py.
TEST(HtmlReport, TenThousandRowsInFiveMegabytes) {
  const std::vector<ResultFile> files = {large_file(20, 100, 400)};
  ASSERT_EQ(files[0].rows.size(), 10000u);
  EXPECT_LT(page_of(files).size(), 5u << 20);
}

TEST(HtmlReport, StaysSmallWhateverIsInTheFiles) {
  // Every sample a task of its own, with long names everywhere.
  ResultFile many = large_file(1500, 1, 100000);
  for (ResultRow& row : many.rows) {
    auto& score = std::get<ScoreRow>(row);
    score.key.task += std::string(2000, '&');
    score.key.label += std::string(2000, '<');
    score.references = {std::string(5000, '"')};
  }
  many.run.model = std::string(1 << 20, 'm');
  many.run.left_out.assign(50000, std::string(500, '\''));
  const std::string page = page_of({many});
  EXPECT_LT(page.size(), 5u << 20);
  EXPECT_TRUE(has(page, "<code>precis report --format csv</code> has all"));
  // Many pictures, each of many cells.
  ResultFile pictures;
  pictures.run = test::some_run();
  for (std::size_t i = 0; i < 60; ++i) {
    KeptRow row = test::some_kept();
    row.key.index = i;
    row.n_layers = 80;
    row.n_heads = 8;
    row.n_bins = 128;
    const std::size_t n = row.n_layers * row.n_heads * row.n_bins;
    row.kept.resize(n);
    for (std::size_t c = 0; c < n; ++c) row.kept[c] = static_cast<double>(c * 7919 % 1000) / 1000;
    row.merged = row.bias = row.kept;
    row.residual.assign(row.n_layers * row.n_heads, 0.5);
    row.words.assign(row.n_bins, "<words>");
    pictures.rows.push_back(row);
  }
  const std::string drawn = page_of({pictures});
  EXPECT_LT(drawn.size(), 5u << 20);
  EXPECT_TRUE(has(drawn, " of 60 pictures are drawn"));
  EXPECT_TRUE(has(drawn, " charts and pictures are left out"));
  // Many methods in each of many charts.
  ResultFile methods;
  methods.run = test::some_run();
  for (std::size_t t = 0; t < 100; ++t) {
    for (std::size_t m = 0; m < 100; ++m) {
      ScoreRow row = test::some_score();
      row.key.task = "task " + std::to_string(t);
      row.key.label = std::string(300, '&') + std::to_string(m);
      methods.rows.push_back(row);
    }
  }
  const std::string crowded = page_of({methods});
  EXPECT_LT(crowded.size(), 5u << 20);
  EXPECT_TRUE(has(crowded, " charts and pictures are left out"));
  EXPECT_TRUE(has(drawn, "share of positions kept"));
}

TEST(HtmlReport, AtMostTwoHundredAnswersTheWorstLossesFirst) {
  ResultFile file = large_file(1, 100, 5);
  for (ResultRow& row : file.rows) {
    auto& score = std::get<ScoreRow>(row);
    score.score = score.key.label == "full" ? 1 : 0.5;
    score.answer = "ordinary";
    if (score.key.label == "snapkv" && score.key.index == 77 && score.key.keep == "10%") {
      score.score = 0;
      score.answer = "the worst of all";
    }
  }
  const std::string page = page_of({file});
  EXPECT_TRUE(has(page, "200 of 500 answers"));
  EXPECT_EQ(count(page, "the worst of all"), 1u);
  EXPECT_LT(page.find("the worst of all"), page.find("ordinary"));
}

TEST(HtmlReport, AnswersWithoutReferencesAreShownWithoutAScore) {
  ResultFile file = large_file(1, 2, 5);
  for (ResultRow& row : file.rows) {
    auto& score = std::get<ScoreRow>(row);
    if (score.key.index == 0) continue;
    score.references.clear();
    score.score = 0;
    score.answer = "an open answer of " + score.key.label;
  }
  const std::string page = page_of({file});
  const std::size_t section = page.find("Answers without a score</h2>");
  ASSERT_NE(section, std::string::npos);
  EXPECT_EQ(count(page, "an open answer of selkv"), 2u);
  EXPECT_GT(page.find("an open answer of selkv"), section);
  EXPECT_TRUE(has(page, "5 of 5 answers"));
  EXPECT_FALSE(has(page_of({large_file(1, 2, 5)}), "Answers without a score"));
}

TEST(Charts, WhatCannotBeDrawnIsNotDrawn) {
  PageState page;
  EXPECT_EQ(svg_line_chart({}, page), "");
  EXPECT_EQ(svg_bar_chart("t", "u", {}, page), "");
  EXPECT_EQ(svg_number_map({}, page), "");
  EXPECT_EQ(svg_text_map({}, page), "");
}

// Any finite values give finite coordinates and few ticks.
TEST(Charts, ExtremeValuesStayInsideOfTheFrame) {
  for (const double y : {0.0, 1e100, -1e100, 1e-300, 1.0}) {
    for (const double spread : {0.0, 1e-30, 1.0, 1e100}) {
      LineChart chart;
      chart.title = "t";
      chart.y_title = "y";
      chart.series = {{"a",
                       false,
                       {{0, {y, Interval{y - spread, y + spread}, 3}, "p"},
                        {1, {y + spread, {}, 3}, "q"},
                        {1e100, {y, {}, 3}, "r"}}}};
      PageState page;
      const std::string svg = svg_line_chart(chart, page);
      EXPECT_LT(svg.size(), 20000u);
      for (const char* bad : {"nan", "inf", "e\\+"}) {
        const std::string drawing = svg.substr(0, svg.find("<details"));
        const std::regex attribute(" (d|x|y|transform)=\"[^\"]*" + std::string(bad));
        EXPECT_FALSE(std::regex_search(drawing, attribute)) << y << " " << spread;
      }
    }
  }
}

TEST(Charts, SeriesDifferInMoreThanColour) {
  LineChart chart;
  chart.title = "t";
  chart.y_title = "y";
  for (int i = 0; i < 20; ++i)
    chart.series.push_back({"s" + std::to_string(i), false, {{0.1, {0.5, {}, 3}, "p"}}});
  PageState page;
  const std::string svg = svg_line_chart(chart, page);
  std::set<std::string> shapes;
  std::set<std::string> looks;
  const std::regex mark("class=\"mark (s\\d)\"[^>]* d=\"([^\"]+)\"");
  for (std::sregex_iterator at(svg.begin(), svg.end(), mark), end; at != end; ++at) {
    shapes.insert((*at)[2]);
    looks.insert((*at)[1].str() + (*at)[2].str());
  }
  EXPECT_EQ(shapes.size(), 8u);
  EXPECT_EQ(looks.size(), 20u);
  std::set<std::string> dashes;
  const std::string style = report_style();
  const std::regex dash("\\.line\\.s\\d \\{ stroke-dasharray: ([^;]+);");
  for (std::sregex_iterator at(style.begin(), style.end(), dash), end; at != end; ++at)
    dashes.insert((*at)[1]);
  EXPECT_EQ(dashes.size(), 7u);  // and one without
}

TEST(Charts, HeatMapsCoverEveryCellOnce) {
  TextMap map;
  map.title = "t";
  map.quantity = "kept";
  map.n_layers = 3;
  map.n_heads = 2;
  map.n_bins = 7;
  map.n_tokens = 100;
  for (int i = 0; i < 42; ++i) map.cells.push_back(static_cast<double>(i * 13 % 42) / 42);
  map.numbers.columns = {{"x", false, ""}};
  PageState page;
  const std::string svg = svg_text_map(map, page);
  // Paths after the strip: "M<bin> <row>h<n>".
  const std::string cells = svg.substr(svg.find("<g ", svg.find("</g>")));
  std::vector<int> covered(42, 0);
  const std::regex run("M(\\d+) (\\d+)h(\\d+)v1H(\\d+)z");
  for (std::sregex_iterator at(cells.begin(), cells.end(), run), end; at != end; ++at) {
    EXPECT_EQ((*at)[1], (*at)[4]);
    for (int b = 0; b < std::stoi((*at)[3]); ++b)
      ++covered[static_cast<std::size_t>(std::stoi((*at)[2]) * 7 + std::stoi((*at)[1]) + b)];
  }
  EXPECT_EQ(covered, std::vector<int>(42, 1));
  const std::vector<double> means = bin_means(map);
  double sum = 0;
  for (int row = 0; row < 6; ++row) sum += map.cells[static_cast<std::size_t>(row * 7 + 4)];
  EXPECT_NEAR(means[4], sum / 6, 1e-12);
}

}  // namespace
}  // namespace precis
