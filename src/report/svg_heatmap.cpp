#include "report/svg_heatmap.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "report/number_text.h"
#include "report/svg_figure.h"

namespace precis {
namespace {

constexpr int kLevels = 10;
constexpr std::size_t kLongestName = 24;
constexpr std::size_t kMostNumbered = 64;

std::string rectangle(const std::string& css, double x, double y, double width, double height,
                      const std::string& title) {
  std::string out = "<rect class=\"" + css + "\" x=\"" + coordinate(x) + "\" y=\"" + coordinate(y) +
                    "\" width=\"" + coordinate(width) + "\" height=\"" + coordinate(height) + "\"";
  if (title.empty()) return out + "/>\n";
  return out + "><title>" + html_text(title) + "</title></rect>\n";
}

// Ten squares from low to high.
std::string scale_legend(double x, double y, const std::string& low, const std::string& high) {
  std::string out = svg_text(x, y + 10, "start", low);
  double at = x + 8 + 7 * static_cast<double>(low.size());
  for (int level = 0; level < kLevels; ++level, at += 16)
    out += rectangle(concat("h", level), at, y, 16, 12, "");
  return out + svg_text(at + 6, y + 10, "start", high);
}

class NumberPlot {
 public:
  explicit NumberPlot(const NumberMap& map) : map_(map) {
    numbered_ = map.columns.size() <= kMostNumbered;
    std::size_t longest = map.row_title.size();
    for (const std::string& row : map.rows) longest = std::max(longest, row.size());
    left_ = 16 + 7.2 * static_cast<double>(std::min(longest, kLongestName + 3));
    std::size_t widest = 3;
    for (const std::string& column : map.columns) widest = std::max(widest, column.size());
    cell_width_ =
        numbered_ ? std::max(38.0, 7.4 * static_cast<double>(std::min(widest, std::size_t{9})) + 6)
                  : std::max(3.0, 640.0 / static_cast<double>(map.columns.size()));
    cell_height_ = map.rows.size() > 40 ? 16 : 24;
  }

  Figure draw() const {
    Figure out;
    out.title = map_.title;
    out.small = map_.columns.size() <= 8;
    const double n_columns = static_cast<double>(map_.columns.size());
    const double bottom = top_ + cell_height_ * static_cast<double>(map_.rows.size());
    out.width = std::max(left_ + cell_width_ * n_columns + 12, 300.0);
    out.height = bottom + 40;
    out.drawing += svg_text(left_, 12, "start", map_.column_title, "axistitle");
    out.drawing += svg_text(left_ - 8, top_ - 6, "end", map_.row_title, "axistitle");
    for (std::size_t c = 0; numbered_ && c < map_.columns.size(); ++c)
      out.drawing += svg_text(left_ + cell_width_ * (static_cast<double>(c) + 0.5), top_ - 6,
                              "middle", shorten(map_.columns[c], 9));
    for (std::size_t r = 0; r < map_.rows.size(); ++r) out.drawing += row(r);
    out.drawing += scale_legend(left_, bottom + 14, text(map_.low), text(map_.high));
    describe(out);
    return out;
  }

 private:
  std::string text(double value) const { return fixed_text(value * map_.scale, map_.digits); }

  std::string row(std::size_t r) const {
    const double y = top_ + cell_height_ * static_cast<double>(r);
    const double base = y + cell_height_ / 2 + 4.5;
    std::string out = svg_text(left_ - 8, base, "end", shorten(map_.rows[r], kLongestName));
    for (std::size_t c = 0; c < map_.columns.size(); ++c) {
      const std::optional<double>& value = map_.cells[r][c];
      const double x = left_ + cell_width_ * static_cast<double>(c);
      const std::string name = map_.row_title + " " + map_.rows[r] + ", " + map_.column_title +
                               " " + map_.columns[c] + ": ";
      if (!value) {
        out += rectangle("none", x, y, cell_width_, cell_height_, name + "no result");
        continue;
      }
      const int level = heat_level(*value, map_.low, map_.high);
      out +=
          rectangle(concat("cell h", level), x, y, cell_width_, cell_height_, name + text(*value));
      if (numbered_)
        out += svg_text(x + cell_width_ / 2, base, "middle", text(*value),
                        concat("label t", level).c_str());
    }
    return out;
  }

  void describe(Figure& out) const {
    out.description =
        map_.title + ". " + map_.row_title + " down, " + map_.column_title + " across.";
    out.numbers.caption = map_.title;
    out.numbers.columns.push_back({map_.row_title, false, ""});
    for (const std::string& column : map_.columns)
      out.numbers.columns.push_back({map_.column_title + " " + column, true, ""});
    for (std::size_t r = 0; r < map_.rows.size(); ++r) {
      out.numbers.rows.push_back({{map_.rows[r], {}, CellMark::kNone}});
      for (const auto& value : map_.cells[r])
        out.numbers.rows.back().push_back(value ? TableCell{text(*value), *value, CellMark::kNone}
                                                : TableCell{});
    }
  }

  const NumberMap& map_;
  bool numbered_;
  double left_;
  double top_ = 34;
  double cell_width_;
  double cell_height_;
};

class TextPlot {
 public:
  explicit TextPlot(const TextMap& map) : map_(map), n_rows_(map.n_layers * map.n_heads) {
    cell_height_ = std::clamp(460.0 / static_cast<double>(n_rows_), 1.0, 14.0);
    cell_width_ = (kWidth - kLeft - 12) / static_cast<double>(map.n_bins);
    bottom_ = kTop + cell_height_ * static_cast<double>(n_rows_);
  }

  Figure draw() const {
    Figure out;
    out.title = map_.title;
    out.width = kWidth;
    out.height = bottom_ + 78;
    out.drawing += strip() + cells() + axes() + columns();
    out.drawing += scale_legend(kLeft, bottom_ + 54, text(map_.low), text(map_.high));
    const std::vector<double> means = bin_means(map_);
    const auto most = std::max_element(means.begin(), means.end());
    const auto least = std::min_element(means.begin(), means.end());
    out.description =
        concat(map_.quantity, " over ", map_.n_tokens, " tokens in ", map_.n_bins, " bins, for ",
               map_.n_layers, " layers of ", map_.n_heads, " KV heads. Highest on average ",
               text(*most), " in bin ", most - means.begin() + 1, ", lowest ", text(*least),
               " in bin ", least - means.begin() + 1, ".");
    out.numbers = map_.numbers;
    return out;
  }

 private:
  static constexpr double kWidth = 760;
  static constexpr double kLeft = 74;
  static constexpr double kTop = 40;  // a strip of the means lies above

  std::string text(double value) const {
    return map_.is_share ? fixed_text(100 * value, 0) + " %" : short_text(value);
  }

  // One path for each level, in units of cells, neighbours of a row in one piece: at most some 14
  // bytes a cell. `row_of` gives the values of a row.
  template <class RowOf>
  std::string level_paths(std::size_t n_rows, RowOf row_of) const {
    std::array<std::string, kLevels> paths;
    for (std::size_t r = 0; r < n_rows; ++r) {
      const double* values = row_of(r);
      for (std::size_t b = 0; b < map_.n_bins;) {
        const int level = heat_level(values[b], map_.low, map_.high);
        std::size_t end = b + 1;
        while (end < map_.n_bins && heat_level(values[end], map_.low, map_.high) == level) ++end;
        paths[static_cast<std::size_t>(level)] +=
            concat("M", b, " ", r, "h", end - b, "v1H", b, "z");
        b = end;
      }
    }
    std::string out;
    for (std::size_t level = 0; level < paths.size(); ++level)
      if (!paths[level].empty())
        out += concat("<path class=\"h", level, "\" d=\"", paths[level], "\"/>\n");
    return out;
  }

  static std::string scaled(double top, double width, double height, const std::string& content) {
    return "<g shape-rendering=\"crispEdges\" transform=\"translate(" + coordinate(kLeft) + " " +
           coordinate(top) + ") scale(" + fixed_text(width, 4) + " " + fixed_text(height, 4) +
           ")\">\n" + content + "</g>\n";
  }

  std::string strip() const {
    const std::vector<double> means = bin_means(map_);
    return svg_text(kLeft - 6, kTop - 16, "end", "all") +
           scaled(kTop - 30, cell_width_, 22,
                  level_paths(1, [&means](std::size_t) { return means.data(); }));
  }

  std::string cells() const {
    return scaled(kTop, cell_width_, cell_height_, level_paths(n_rows_, [this](std::size_t r) {
                    return map_.cells.data() + r * map_.n_bins;
                  }));
  }

  std::string axes() const {
    std::string out = svg_text(4, kTop - 16, "start", "layer", "axistitle");
    const double per_layer = cell_height_ * static_cast<double>(map_.n_heads);
    const auto every = static_cast<std::size_t>(std::max(1.0, std::ceil(13 / per_layer)));
    for (std::size_t layer = 0; layer < map_.n_layers; ++layer) {
      const double y = kTop + per_layer * static_cast<double>(layer);
      if (layer > 0 && per_layer >= 6)
        out += "<path class=\"split\" d=\"M" + coordinate(kLeft) + " " + coordinate(y) + "H" +
               coordinate(kWidth - 12) + "\"/>\n";
      if (layer % every == 0)
        out +=
            svg_text(kLeft - 6, y + std::max(per_layer / 2 + 4, 9.0), "end", std::to_string(layer));
    }
    for (int i = 0; i <= 4; ++i) {
      const double x = kLeft + (kWidth - 12 - kLeft) * i / 4;
      out += svg_text(x, bottom_ + 17,
                      i == 0   ? "start"
                      : i == 4 ? "end"
                               : "middle",
                      std::to_string(map_.n_tokens * static_cast<std::size_t>(i) / 4));
    }
    return out +
           svg_text((kLeft + kWidth) / 2, bottom_ + 37, "middle", "position, tokens", "axistitle");
  }

  // What is pointed at: a bin of the text.
  std::string columns() const {
    const std::vector<double> means = bin_means(map_);
    std::string out;
    for (std::size_t b = 0; b < map_.n_bins; ++b) {
      std::string name =
          concat("bin ", b + 1, ", tokens ", b * map_.n_tokens / map_.n_bins, " to ",
                 (b + 1) * map_.n_tokens / map_.n_bins, ": ", map_.quantity, " ", text(means[b]));
      if (b < map_.words.size()) name += ": " + shorten(map_.words[b], 80);
      out += rectangle("hit", kLeft + cell_width_ * static_cast<double>(b), kTop - 30, cell_width_,
                       bottom_ - kTop + 30, name);
    }
    return out;
  }

  const TextMap& map_;
  std::size_t n_rows_;
  double cell_width_;
  double cell_height_;
  double bottom_;
};

}  // namespace

std::string svg_number_map(const NumberMap& map, PageState& page) {
  const std::size_t n = map.rows.size() * map.columns.size();
  // Cells of their own elements are some 40 times as long as those of text maps.
  if (n == 0) return {};
  if (page.charts_left == 0 || page.picture_cells_left < 40 * n) {
    ++page.n_left_out;
    return {};
  }
  page.picture_cells_left -= 40 * n;
  --page.charts_left;
  return html_figure(NumberPlot(map).draw(), page);
}

std::vector<double> bin_means(const TextMap& map) {
  std::vector<double> out(map.n_bins, 0);
  const std::size_t n_rows = map.n_layers * map.n_heads;
  PRECIS_CHECK(map.cells.size() == n_rows * map.n_bins && n_rows > 0, map.cells.size());
  for (std::size_t i = 0; i < map.cells.size(); ++i)
    out[i % map.n_bins] += map.cells[i] / static_cast<double>(n_rows);
  return out;
}

std::string svg_text_map(const TextMap& map, PageState& page) {
  if (map.cells.empty()) return {};
  if (map.cells.size() > page.picture_cells_left) {
    ++page.n_left_out;
    return {};
  }
  page.picture_cells_left -= map.cells.size();
  return html_figure(TextPlot(map).draw(), page);
}

std::string shaded_text(const std::vector<std::string>& words, const std::vector<double>& values,
                        double low, double high) {
  std::string out;
  for (std::size_t i = 0; i < words.size() && i < values.size(); ++i)
    out += concat("<span class=\"k", heat_level(values[i], low, high), "\">",
                  html_text(shorten(words[i], 60)), "</span> ");
  return out;
}

}  // namespace precis
