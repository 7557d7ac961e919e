#include "report/svg_chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "report/number_text.h"
#include "report/svg_figure.h"

namespace precis {
namespace {

constexpr std::size_t kStyles = 8;  // colours, markers and dashes of html_style.cpp
constexpr std::size_t kLongestName = 44;
constexpr double kLegendLine = 20;

// Shapes around (0, 0), some 9 units wide: a circle, a square, triangles, a diamond, a cross, ...
constexpr std::array<const char*, kStyles> kMarkers = {
    "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0z",
    "M-4 -4h8v8h-8z",
    "M0 -5.5L5 4H-5z",
    "M0 -6L5 0L0 6L-5 0z",
    "M0 5.5L5 -4H-5z",
    "M-1.6 -5h3.2v3.4h3.4v3.2h-3.4v3.4h-3.2v-3.4h-3.4v-3.2h3.4z",
    "M0 -5.5L5.2 -1.7L3.2 4.5H-3.2L-5.2 -1.7z",
    "M-5 -4.5L0 -1.5L5 -4.5L2 0L5 4.5L0 1.5L-5 4.5L-2 0z"};
constexpr const char* kReferenceMarker = "M-5.5 -1.5h11v3h-11z";

struct Style {
  std::string css_class;  // "s3", or "ref"
  const char* marker;
};

std::vector<Style> styles_of(const LineChart& chart) {
  std::vector<Style> out;
  std::size_t n = 0;
  for (const ChartSeries& series : chart.series) {
    if (series.is_reference) {
      out.push_back({"ref", kReferenceMarker});
      continue;
    }
    // The ninth has the first one's colour, but not its shape.
    out.push_back({concat("s", n % kStyles), kMarkers[(n + n / kStyles) % kStyles]});
    ++n;
  }
  return out;
}

struct Axis {
  double low = 0;
  double high = 1;
  double step = 0.2;
};

// Between 4 and 8 steps of 1, 2 or 5 times a power of ten.
Axis nice_axis(double low, double high) {
  // Also where the range would be lost in rounding.
  if (!(high - low > 1e-9 * std::max(std::abs(low), std::abs(high)))) {
    low -= 0.5 * std::max(1e-6, std::abs(low));
    high = low + std::max(1e-6, std::abs(low)) + 1e-6;
  }
  const double raw = (high - low) / 5;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  double step = power;
  for (const double factor : {2.0, 5.0, 10.0})
    if (raw > step * 1.2) step = factor * power;
  return {std::floor(low / step + 1e-9) * step, std::ceil(high / step - 1e-9) * step, step};
}

Axis y_axis(const LineChart& chart) {
  double low = std::numeric_limits<double>::max();
  double high = std::numeric_limits<double>::lowest();
  const auto include = [&](double y) {
    low = std::min(low, y);
    high = std::max(high, y);
  };
  if (chart.chance) include(*chart.chance);
  for (const ChartSeries& series : chart.series) {
    for (const ChartPoint& point : series.points) {
      include(point.y.value);
      if (!point.y.interval) continue;
      include(point.y.interval->low);
      include(point.y.interval->high);
    }
  }
  Axis axis = nice_axis(low * chart.y_scale, high * chart.y_scale);
  if (chart.y_most && axis.high > *chart.y_most * chart.y_scale)
    axis.high = *chart.y_most * chart.y_scale;
  return axis;
}

class LinePlot {
 public:
  explicit LinePlot(const LineChart& chart)
      : chart_(chart), styles_(styles_of(chart)), axis_(y_axis(chart)) {
    width_ = chart.small ? 400 : 720;
    right_ = width_ - 18;
    bottom_ = chart.small ? 200 : 330;
    x_low_ = 1;
    for (const ChartSeries& series : chart.series)
      for (const ChartPoint& point : series.points)
        if (point.x > 0) x_low_ = std::min(x_low_, point.x);
    x_low_ = std::max(1e-4, std::min(0.5, x_low_)) / 1.15;
  }

  Figure draw() {
    Figure out;
    out.title = chart_.title;
    out.width = width_;
    out.small = chart_.small;
    out.drawing = frame() + references();
    for (std::size_t i = 0; i < chart_.series.size(); ++i) out.drawing += one_series(i);
    out.drawing += legend();
    out.height = height_;
    out.description = description();
    out.numbers = numbers();
    return out;
  }

 private:
  double x(double share) const {
    const double clamped = std::clamp(share, x_low_, 1.2);
    return left_ + (right_ - left_) * std::log(clamped / x_low_) / std::log(1.08 / x_low_);
  }
  double y(double value) const {
    const double place = (value * chart_.y_scale - axis_.low) / (axis_.high - axis_.low);
    return bottom_ - (bottom_ - top_) * std::clamp(place, 0.0, 1.0);
  }

  std::string frame() const {
    std::string out;
    const int digits = axis_.step >= 1 ? 0 : static_cast<int>(std::ceil(-std::log10(axis_.step)));
    const double n_steps = std::min(20.0, std::floor((axis_.high - axis_.low) / axis_.step + 1e-6));
    for (double i = 0; i <= n_steps; ++i) {
      const double tick = axis_.low + i * axis_.step;
      const double at = y(tick / chart_.y_scale);
      out += "<path class=\"grid\" d=\"M" + coordinate(left_) + " " + coordinate(at) + "H" +
             coordinate(right_) + "\"/>\n";
      out += svg_text(left_ - 7, at + 4, "end", fixed_text(tick, std::min(digits, 6)));
    }
    for (const double tick : {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0}) {
      if (tick < x_low_) continue;
      const double at = x(tick);
      out += "<path class=\"axis\" d=\"M" + coordinate(at) + " " + coordinate(bottom_) + "v5\"/>\n";
      out += svg_text(at, bottom_ + 19, "middle", short_percent(tick));
    }
    out += "<path class=\"axis\" d=\"M" + coordinate(left_) + " " + coordinate(bottom_) + "H" +
           coordinate(right_) + "\"/>\n";
    out += svg_text((left_ + right_) / 2, bottom_ + 38, "middle",
                    "kept, of the bytes of the full cache (logarithmic)", "axistitle");
    out += svg_text(4, top_ - 9, "start", chart_.y_title, "axistitle");
    return out;
  }

  static std::string short_percent(double share) {
    return fixed_text(100 * share, share < 0.01 ? 1 : 0) + " %";
  }

  std::string across(const char* css_class, double value) const {
    return std::string("<path class=\"") + css_class + "\" d=\"M" + coordinate(left_) + " " +
           coordinate(y(value)) + "H" + coordinate(right_) + "\"/>\n";
  }

  std::string references() const {
    std::string out;
    if (chart_.chance) {
      out += across("chance", *chart_.chance);
      out += svg_text(left_ + 6, y(*chart_.chance) - 5, "start",
                      "guessing: " + fixed_text(*chart_.chance * chart_.y_scale, chart_.digits),
                      "label muted");
    }
    for (const ChartSeries& series : chart_.series)
      if (series.is_reference && !series.points.empty())
        out += across("refline", series.points.back().y.value);
    return out;
  }

  // Points at the same budget lie side by side, so that their intervals can be told apart.
  double shift_of(std::size_t i) const {
    const double n = static_cast<double>(chart_.series.size());
    const double gap = std::min(5.0, 40.0 / n);
    return (static_cast<double>(i) - (n - 1) / 2) * gap;
  }

  std::string one_series(std::size_t i) const {
    const ChartSeries& series = chart_.series[i];
    const std::string& css = styles_[i].css_class;
    const double shift = series.is_reference ? 0 : shift_of(i);
    std::string line;
    std::string bars;
    std::string markers;
    for (const ChartPoint& point : series.points) {
      const std::string px = coordinate(x(point.x) + shift);
      const std::string py = coordinate(y(point.y.value));
      line += (line.empty() ? "M" : "L") + px + " " + py;
      if (point.y.interval)
        bars += "M" + px + " " + coordinate(y(point.y.interval->low)) + "V" +
                coordinate(y(point.y.interval->high));
      markers += "<path class=\"mark " + css + "\" transform=\"translate(" + px + " " + py +
                 ")\" d=\"" + styles_[i].marker + "\"><title>" + html_text(title_of(point)) +
                 "</title></path>\n";
    }
    std::string out;
    if (series.points.size() > 1) out += "<path class=\"line " + css + "\" d=\"" + line + "\"/>\n";
    if (!bars.empty()) out += "<path class=\"bar " + css + "\" d=\"" + bars + "\"/>\n";
    return out + markers;
  }

  std::string title_of(const ChartPoint& point) const {
    return shorten(point.name, 120) + ": " + estimate_text(point.y, chart_.y_scale, chart_.digits);
  }

  std::string legend() {
    const std::size_t n_columns = chart_.small ? 1 : 2;
    std::string out;
    std::size_t n = 0;
    const double top = bottom_ + 58;
    for (std::size_t i = 0; i < chart_.series.size(); ++i) {
      if (chart_.series[i].points.empty()) continue;
      const double at_x = left_ + static_cast<double>(n % n_columns) * (right_ - left_) / 2;
      const double at_y = top + kLegendLine * static_cast<double>(n / n_columns);
      const std::string& css = styles_[i].css_class;
      out += "<path class=\"line " + css + "\" d=\"M" + coordinate(at_x) + " " + coordinate(at_y) +
             "h34\"/>\n<path class=\"mark " + css + "\" transform=\"translate(" +
             coordinate(at_x + 17) + " " + coordinate(at_y) + ")\" d=\"" + styles_[i].marker +
             "\"/>\n";
      out += svg_text(at_x + 42, at_y + 4.5, "start", shorten(chart_.series[i].name, kLongestName));
      ++n;
    }
    height_ =
        top + kLegendLine * std::ceil(static_cast<double>(n) / static_cast<double>(n_columns));
    return out;
  }

  std::string description() const {
    std::string out = chart_.y_title + " against the share of the cache that is kept. ";
    for (const ChartSeries& series : chart_.series) {
      if (series.points.empty()) continue;
      out += shorten(series.name, 80) + ": ";
      for (std::size_t i = 0; i < series.points.size() && i < 12; ++i)
        out += concat(i > 0 ? ", " : "",
                      fixed_text(series.points[i].y.value * chart_.y_scale, chart_.digits), " at ",
                      percent_text(series.points[i].x));
      out += ". ";
    }
    return out;
  }

  Table numbers() const {
    Table out;
    out.caption = chart_.title;
    out.columns = {{"method", false, ""}, {"kept", true, ""}, {chart_.y_title, true, ""},
                   {"from", true, ""},    {"to", true, ""},   {"samples", true, ""}};
    const auto cell = [](double value, std::string text) {
      return TableCell{std::move(text), value, CellMark::kNone};
    };
    for (const ChartSeries& series : chart_.series) {
      for (const ChartPoint& point : series.points) {
        const auto scaled = [&](double value) {
          return cell(value, fixed_text(value * chart_.y_scale, chart_.digits));
        };
        const auto& interval = point.y.interval;
        out.rows.push_back(
            {{point.name, {}, CellMark::kNone},
             cell(point.x, percent_text(point.x)),
             scaled(point.y.value),
             interval ? scaled(interval->low) : TableCell{},
             interval ? scaled(interval->high) : TableCell{},
             cell(static_cast<double>(point.y.n_units), std::to_string(point.y.n_units))});
      }
    }
    return out;
  }

  const LineChart& chart_;
  std::vector<Style> styles_;
  Axis axis_;
  double width_, right_, bottom_;
  double left_ = 52;
  double top_ = 26;
  double height_ = 0;
  double x_low_;
};

}  // namespace

std::string svg_line_chart(const LineChart& chart, PageState& page) {
  const bool empty = std::all_of(chart.series.begin(), chart.series.end(),
                                 [](const ChartSeries& s) { return s.points.empty(); });
  if (empty) return {};
  if (page.charts_left == 0) {
    ++page.n_left_out;
    return {};
  }
  --page.charts_left;
  return html_figure(LinePlot(chart).draw(), page);
}

std::string svg_bar_chart(const std::string& title, const std::string& unit,
                          const std::vector<Bar>& bars, PageState& page) {
  if (bars.empty()) return {};
  if (page.charts_left == 0) {
    ++page.n_left_out;
    return {};
  }
  --page.charts_left;
  constexpr double kBar = 18;
  constexpr double kGap = 8;
  constexpr double kNames = 172;
  constexpr double kBars = 190;
  double most = 0;
  for (const Bar& bar : bars) most = std::max(most, bar.value);
  Figure out;
  out.title = title;
  out.width = kNames + kBars + 84;
  out.small = true;
  out.height = static_cast<double>(bars.size()) * (kBar + kGap) + kGap;
  out.description = title + ", in " + unit + ". ";
  out.numbers.caption = title;
  out.numbers.columns = {{"method", false, ""}, {unit, true, ""}};
  for (std::size_t i = 0; i < bars.size(); ++i) {
    const Bar& bar = bars[i];
    const double top = kGap + static_cast<double>(i) * (kBar + kGap);
    const double length = most > 0 ? kBars * bar.value / most : 0;
    out.drawing += svg_text(kNames - 8, top + 13.5, "end", shorten(bar.name, 22));
    out.drawing += "<rect class=\"" + std::string(bar.is_reference ? "fill ref" : "fill s0") +
                   "\" x=\"" + coordinate(kNames) + "\" y=\"" + coordinate(top) + "\" width=\"" +
                   coordinate(std::max(1.0, length)) + "\" height=\"" + coordinate(kBar) +
                   "\"><title>" + html_text(shorten(bar.name, 120) + ": " + bar.text) +
                   "</title></rect>\n";
    out.drawing += svg_text(kNames + length + 7, top + 13.5, "start", bar.text);
    if (i < 12) out.description += shorten(bar.name, 60) + ": " + bar.text + ". ";
    out.numbers.rows.push_back(
        {{bar.name, {}, CellMark::kNone}, {bar.text, bar.value, CellMark::kNone}});
  }
  return html_figure(out, page);
}

}  // namespace precis
