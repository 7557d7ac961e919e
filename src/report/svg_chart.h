// Charts as SVG, drawn once and readable without any script: series differ in colour, shape of the
// marker and dashes. Colours come from the page's style (html_style.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "report/html_text.h"
#include "report/paired.h"

namespace precis {

struct ChartPoint {
  double x = 0;  // share of the bytes that is kept, above 0
  Estimate y;
  std::string name;  // shown while pointing at it
};

struct ChartSeries {
  std::string name;
  bool is_reference = false;  // drawn plainly, with a line across at the height of its last point
  std::vector<ChartPoint> points;
};

struct LineChart {
  std::string title;
  std::string y_title;
  std::vector<ChartSeries> series;
  std::optional<double> chance;  // a dotted line
  double y_scale = 1;            // y times this is shown
  int digits = 1;
  std::optional<double> y_most;  // the axis ends here at the latest
  bool small = false;            // one of many
};

// A figure: the chart, and its numbers folded away. Empty if no series has a point.
std::string svg_line_chart(const LineChart& chart, PageState& page);

struct Bar {
  std::string name;
  double value = 0;
  std::string text;  // the value as shown
  bool is_reference = false;
};

// Horizontal bars from 0. Empty if there are none.
std::string svg_bar_chart(const std::string& title, const std::string& unit,
                          const std::vector<Bar>& bars, PageState& page);

}  // namespace precis
