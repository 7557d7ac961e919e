#include "report/html_sections.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "base/error.h"
#include "base/fields.h"
#include "report/number_text.h"
#include "report/report_tables.h"
#include "report/svg_chart.h"
#include "report/svg_heatmap.h"

namespace precis {
namespace {

constexpr std::size_t kMostMaps = 24;
constexpr const char* kNeedleTask = "needle_depth_";

// A line of a chart for each method; budgets are its points.
template <class Line, class PointOf>
std::vector<ChartSeries> series_of(const std::vector<Variant>& variants, const Line& line,
                                   PointOf point_of) {
  std::vector<ChartSeries> out;
  for (std::size_t v = 0; v < variants.size(); ++v) {
    if (!line.cells[v]) continue;
    // In other row types the full cache is one of the things to compare.
    const bool is_reference =
        variants[v].is_full() && variants[v].type_k == "f16" && variants[v].type_v == "f16";
    auto found = std::find_if(out.begin(), out.end(), [&](const ChartSeries& series) {
      return series.name == variants[v].line && series.is_reference == is_reference;
    });
    if (found == out.end()) {
      out.push_back({variants[v].line, is_reference, {}});
      found = out.end() - 1;
    }
    ChartPoint point = point_of(*line.cells[v]);
    point.name = variants[v].name;
    found->points.push_back(std::move(point));
  }
  for (ChartSeries& series : out)
    std::stable_sort(series.points.begin(), series.points.end(),
                     [](const ChartPoint& a, const ChartPoint& b) { return a.x < b.x; });
  return out;
}

std::string score_chart(const ScoreTable& table, const ScoreLine& line, const std::string& title,
                        bool small, PageState& page) {
  LineChart chart;
  chart.title = title;
  chart.y_title = "score";
  chart.y_scale = 100;
  chart.y_most = 1;
  chart.small = small;
  chart.chance = line.chance;
  chart.series = series_of(table.variants, line, [](const ScoreCell& cell) {
    return ChartPoint{cell.kept_share, cell.score, {}};
  });
  return svg_line_chart(chart, page);
}

std::string many(const std::string& figures) {
  return figures.empty() ? "" : "<div class=\"many\">\n" + figures + "</div>\n";
}

std::string folded(const std::string& summary, const std::string& body) {
  return body.empty()
             ? ""
             : "<details><summary>" + html_text(summary) + "</summary>\n" + body + "</details>\n";
}

// The depth in percent of a task of the needle suite.
std::optional<double> depth_of(const std::string& task) {
  if (!task.starts_with(kNeedleTask)) return {};
  const char* begin = task.data() + std::string_view(kNeedleTask).size();
  double depth = 0;
  const auto [end, status] = std::from_chars(begin, task.data() + task.size(), depth);
  if (status != std::errc{} || end != task.data() + task.size()) return {};
  return depth;
}

// Depth down, length across, one map for each variant.
std::string needle_maps(const ScoreTable& table, PageState& page) {
  std::map<double, std::size_t> depths;
  std::map<std::size_t, std::size_t> lengths;
  for (const ScoreLine& line : table.tasks) {
    const auto depth = depth_of(line.task);
    if (!depth) continue;
    depths.emplace(*depth, 0);
    lengths.emplace(line.length, 0);
  }
  if (depths.empty()) return {};
  NumberMap shape;
  shape.row_title = "depth";
  shape.column_title = "tokens";
  shape.scale = 100;
  for (auto& [depth, place] : depths) {
    place = shape.rows.size();
    shape.rows.push_back(print_number(depth) + " %");
  }
  for (auto& [length, place] : lengths) {
    place = shape.columns.size();
    shape.columns.push_back(std::to_string(length));
  }
  shape.cells.assign(depths.size(), std::vector<std::optional<double>>(lengths.size()));
  std::string out;
  for (std::size_t v = 0; v < table.variants.size() && v < kMostMaps; ++v) {
    NumberMap map = shape;
    map.title = "Score by depth and length: " + table.variants[v].name;
    for (const ScoreLine& line : table.tasks) {
      const auto depth = depth_of(line.task);
      if (depth && line.cells[v])
        map.cells[depths.at(*depth)][lengths.at(line.length)] = line.cells[v]->score.value;
    }
    out += svg_number_map(map, page);
  }
  return "<h3>Needle by depth and length</h3>\n" + many(out);
}

std::string task_charts(const ScoreTable& table, PageState& page) {
  std::string out;
  for (const ScoreLine& line : table.tasks)
    out += score_chart(table, line, task_text(line.task, line.length), true, page);
  return many(out);
}

// The longest contexts are what condensing is for; the table has all lengths.
std::string timing_bars(const TimingTable& table, PageState& page) {
  struct Panel {
    const char* title;
    const char* unit;
    std::optional<double> TimingCell::*field;
    bool is_bytes;
  };
  static const Panel panels[] = {
      {"Decoding speed", "tokens a second", &TimingCell::tokens_per_s, false},
      {"Live bytes of the KV cache", "bytes", &TimingCell::kv_bytes, true},
      {"Time to condense", "ms", &TimingCell::compress_ms, false},
  };
  const TimingLine& line = table.lengths.back();
  std::string out;
  for (const Panel& panel : panels) {
    std::vector<Bar> bars;
    for (std::size_t v = 0; v < table.variants.size() && bars.size() < 40; ++v) {
      if (!line.cells[v] || !((*line.cells[v]).*panel.field)) continue;
      const double value = *((*line.cells[v]).*panel.field);
      bars.push_back({table.variants[v].name, value,
                      panel.is_bytes ? bytes_text(value) : fixed_text(value, 1),
                      table.variants[v].is_full()});
    }
    const std::string title =
        line.length > 0 ? concat(panel.title, " at ", line.length, " tokens") : panel.title;
    out += svg_bar_chart(title, panel.unit, bars, page);
  }
  return out;
}

std::string average_title(const ScoreTable& table) {
  std::set<std::string> tasks;
  for (const ScoreLine& line : table.tasks) tasks.insert(line.task);
  std::string out =
      concat("Average score over ", tasks.size(), tasks.size() == 1 ? " task" : " tasks");
  if (table.averages.size() > 2) out += concat(" at ", table.averages.size() - 1, " lengths");
  return out;
}

std::string comparison_sentence(const ScoreTable& table, const std::string& against) {
  const bool any = std::any_of(table.baselines.begin(), table.baselines.end(),
                               [](const auto& baseline) { return baseline.has_value(); });
  if (!any)
    return "<p>There are no results of a baseline &quot;" + html_text(shorten(against, 80)) +
           "&quot; here, so nothing is compared.</p>\n";
  return "<p>Differences are to the baseline " + html_text(shorten(against, 80)) +
         ", on the same samples. Intervals hold 95 %; where one of a difference holds 0, the two "
         "are "
         "called not distinguishable.</p>\n";
}

}  // namespace

std::string section_title(const Summary& summary, std::size_t source, const std::string& text) {
  return summary.sources.size() > 1 ? text + " (" + shorten(summary.sources[source].name, 100) + ")"
                                    : text;
}

HtmlSection score_section(const Summary& summary, const ScoreTable& table, PageState& page) {
  HtmlSection out;
  const std::string setting = shorten(setting_text(table.suite, table.query), 120);
  out.title = section_title(summary, table.source, setting);
  out.body = comparison_sentence(table, summary.against);
  const ScoreLine& all = table.averages.front();
  const std::size_t n_tasks = table.tasks.size();
  out.body +=
      score_chart(table, all,
                  n_tasks == 1 ? "Score of " + task_text(table.tasks[0].task, table.tasks[0].length)
                               : average_title(table),
                  false, page);
  std::string by_length;
  for (std::size_t i = 1; i < table.averages.size(); ++i)
    by_length +=
        score_chart(table, table.averages[i],
                    concat("Average at ", table.averages[i].length, " tokens"), true, page);
  out.body += many(by_length);
  const std::vector<Table> averages = average_tables(table);
  out.body += html_table(averages.front(), page);
  for (std::size_t i = 1; i < averages.size(); ++i)
    out.body += html_details(concat("Averages at ", table.averages[i].length, " tokens"),
                             averages[i], page);
  out.body += needle_maps(table, page);
  out.body += "<h3>Each task</h3>\n" + html_table(task_table(table), page);
  if (n_tasks > 1) out.body += folded("A chart for each task", task_charts(table, page));
  out.body += html_details("All figures of each task and method", detail_table(table), page);
  return out;
}

HtmlSection fidelity_section(const Summary& summary, const FidelityTable& table, PageState& page) {
  HtmlSection out;
  out.title =
      section_title(summary, table.source,
                    table.suite == "fidelity"
                        ? "Fidelity to the full cache"
                        : "Fidelity: " + shorten(setting_text(table.suite, table.query), 120));
  out.body =
      "<p>A prefix is condensed, then the true continuation is read token by token beside the full "
      "cache. KL is the divergence of the next token's distribution from the full cache's; 0 is "
      "the "
      "full cache itself.</p>\n";
  std::string charts;
  for (const FidelityLine& line : table.texts) {
    LineChart chart;
    chart.title = "Divergence from the full cache: " + task_text(line.task, line.length);
    chart.y_title = "KL, nats a token";
    chart.digits = 4;
    chart.small = table.texts.size() > 1;
    chart.series = series_of(table.variants, line, [](const FidelityCell& cell) {
      return ChartPoint{cell.kept_share, cell.kl, {}};
    });
    charts += svg_line_chart(chart, page);
  }
  out.body += table.texts.size() > 1 ? many(charts) : charts;
  out.body += html_table(fidelity_table(table), page);
  double most = 0;
  for (const FidelityLine& line : table.texts)
    for (const auto& cell : line.cells)
      if (cell)
        for (const auto& layer : cell->output_error)
          for (const double error : layer) most = std::max(most, error);
  std::string maps;
  std::size_t n_maps = 0;
  for (const FidelityLine& line : table.texts) {
    for (std::size_t v = 0; v < table.variants.size(); ++v) {
      if (!line.cells[v] || line.cells[v]->output_error.empty() || n_maps == kMostMaps) continue;
      NumberMap map;
      map.title = table.variants[v].name + ": " + task_text(line.task, line.length);
      map.row_title = "layer";
      map.column_title = "head";
      map.high = most;
      map.digits = 3;
      const auto& error = line.cells[v]->output_error;
      std::size_t n_heads = 0;
      for (const auto& layer : error) n_heads = std::max(n_heads, layer.size());
      for (std::size_t h = 0; h < n_heads; ++h) map.columns.push_back(std::to_string(h));
      for (std::size_t l = 0; l < error.size(); ++l) {
        map.rows.push_back(std::to_string(l));
        map.cells.emplace_back(error[l].begin(), error[l].end());
        map.cells.back().resize(n_heads);
      }
      const std::string figure = svg_number_map(map, page);
      n_maps += figure.empty() ? 0 : 1;
      maps += figure;
    }
  }
  if (!maps.empty())
    out.body +=
        "<h3>Error of attention's output by layer and KV head</h3>\n<p>Relative, over queries "
        "that no method saw, mean over passages. Layers are those that are condensed.</p>\n" +
        many(maps);
  return out;
}

HtmlSection timing_section(const Summary& summary, PageState& page) {
  HtmlSection out{"Speed and memory", {}};
  for (const TimingTable& table : summary.timing) {
    if (table.lengths.empty()) continue;
    const std::string setting = shorten(setting_text(table.suite, table.query), 120);
    out.body += "<h3>" + html_text(section_title(summary, table.source, setting)) + "</h3>\n" +
                many(timing_bars(table, page)) + html_table(timing_table(table), page);
  }
  return out;
}

}  // namespace precis
