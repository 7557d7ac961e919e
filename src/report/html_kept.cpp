// What each layer and head kept over the text.
#include <algorithm>
#include <map>
#include <tuple>

#include "base/error.h"
#include "report/html_sections.h"
#include "report/number_text.h"
#include "report/report_tables.h"
#include "report/svg_heatmap.h"

namespace precis {
namespace {

constexpr std::size_t kMostRows = 512;     // of layers and heads in one picture
constexpr std::size_t kMostCells = 16384;  // of one picture
constexpr std::size_t kMostPictures = 60;

// The row at a size that can be drawn: heads averaged, then neighbouring bins. Nothing if even that
// is too large.
std::optional<KeptRow> reduced(const KeptRow& row) {
  KeptRow out = row;
  std::size_t heads = 1;  // averaged together
  if (row.n_layers * row.n_heads > kMostRows) heads = row.n_heads;
  out.n_heads = row.n_heads / heads;
  const std::size_t n_rows = row.n_layers * out.n_heads;
  if (n_rows > kMostRows) return {};
  const std::size_t bins =
      std::max<std::size_t>(1, (n_rows * row.n_bins + kMostCells - 1) / kMostCells);
  if (heads == 1 && bins == 1) return out;
  out.n_bins = (row.n_bins + bins - 1) / bins;
  const auto shrink = [&](const std::vector<double>& cells) {
    std::vector<double> sums(cells.empty() ? 0 : n_rows * out.n_bins, 0);
    std::vector<double> counts(sums.size(), 0);
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const std::size_t to = i / row.n_bins / heads * out.n_bins + i % row.n_bins / bins;
      sums[to] += cells[i];
      ++counts[to];
    }
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] /= counts[i];
    return sums;
  };
  out.kept = shrink(row.kept);
  out.merged = shrink(row.merged);
  out.bias = shrink(row.bias);
  if (heads > 1) out.residual.clear();
  out.words.clear();
  for (std::size_t b = 0; b < row.words.size(); b += bins) out.words.push_back(row.words[b]);
  return out;
}

TextMap map_of(const KeptRow& row, const std::vector<double>& cells, std::string title,
               std::string quantity) {
  TextMap out;
  out.title = std::move(title);
  out.quantity = std::move(quantity);
  out.n_layers = row.n_layers;
  out.n_heads = row.n_heads;
  out.n_bins = row.n_bins;
  out.n_tokens = row.n_tokens;
  out.cells = cells;
  out.words = row.words;
  return out;
}

void set_range(TextMap& map) {
  map.low = std::min(0.0, *std::min_element(map.cells.begin(), map.cells.end()));
  map.high = *std::max_element(map.cells.begin(), map.cells.end());
}

// Bins down: what a bin holds and how much of it stayed.
Table bin_table(const KeptRow& row, const TextMap& map) {
  Table out;
  out.caption = map.title;
  out.columns = {
      {"bin", true, ""},   {"tokens", false, ""},        {"mean", true, "Over layers and heads."},
      {"least", true, ""}, {"most", true, "Of a head."}, {"text", false, ""}};
  const std::vector<double> means = bin_means(map);
  const auto cell = [&map](double value) {
    return TableCell{map.is_share ? percent_text(value) : short_text(value), value,
                     CellMark::kNone};
  };
  for (std::size_t b = 0; b < row.n_bins; ++b) {
    double least = map.cells[b];
    double most = map.cells[b];
    for (std::size_t i = b; i < map.cells.size(); i += row.n_bins) {
      least = std::min(least, map.cells[i]);
      most = std::max(most, map.cells[i]);
    }
    out.rows.push_back(
        {{std::to_string(b + 1), static_cast<double>(b + 1), CellMark::kNone},
         {concat(b * row.n_tokens / row.n_bins, " to ", (b + 1) * row.n_tokens / row.n_bins),
          static_cast<double>(b), CellMark::kNone},
         cell(means[b]),
         cell(least),
         cell(most),
         {b < row.words.size() ? shorten(row.words[b], 60) : "", {}, CellMark::kNone}});
  }
  return out;
}

Table head_table(const KeptRow& row, const std::string& title) {
  Table out;
  out.caption = title + ": each layer and head";
  out.columns = {{"layer", true, ""}, {"head", true, ""}, {"kept", true, "Mean over bins."}};
  if (!row.residual.empty()) out.columns.push_back({"residual", true, "Share of its entries."});
  for (std::size_t i = 0; i < row.n_layers * row.n_heads; ++i) {
    double sum = 0;
    for (std::size_t b = 0; b < row.n_bins; ++b) sum += row.kept[i * row.n_bins + b];
    const double kept = sum / static_cast<double>(row.n_bins);
    const auto number = [](std::size_t n) {
      return TableCell{std::to_string(n), static_cast<double>(n), CellMark::kNone};
    };
    out.rows.push_back({number(i / row.n_heads),
                        number(i % row.n_heads),
                        {percent_text(kept), kept, CellMark::kNone}});
    if (!row.residual.empty())
      out.rows.back().push_back({percent_text(row.residual[i]), row.residual[i], CellMark::kNone});
  }
  return out;
}

std::string residual_map(const KeptRow& row, const std::string& title, PageState& page) {
  NumberMap map;
  map.title = title + ": share of entries that are residual, in percent";
  map.row_title = "layer";
  map.column_title = "head";
  map.scale = 100;
  map.high = std::max(0.01, *std::max_element(row.residual.begin(), row.residual.end()));
  for (std::size_t h = 0; h < row.n_heads; ++h) map.columns.push_back(std::to_string(h));
  for (std::size_t l = 0; l < row.n_layers; ++l) {
    map.rows.push_back(std::to_string(l));
    const auto begin = row.residual.begin() + static_cast<std::ptrdiff_t>(l * row.n_heads);
    map.cells.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(row.n_heads));
  }
  return svg_number_map(map, page);
}

// All pictures of one row; empty if the page has no room for the first.
std::string pictures(const KeptRow& row, const std::string& name, PageState& page) {
  TextMap kept = map_of(row, row.kept, name + ": share of positions kept", "kept");
  kept.is_share = true;
  kept.numbers = bin_table(row, kept);
  const std::string first = svg_text_map(kept, page);
  if (first.empty()) return {};
  std::string out = "<h3>" + html_text(name) + "</h3>\n" + first;
  if (!row.words.empty())
    out +=
        "<p class=\"shaded\">" + shaded_text(row.words, bin_means(kept), 0, 1) +
        "</p>\n<p class=\"note\">The beginning of each bin's text; the darker (on a dark page: the "
        "lighter), the more of it is kept.</p>\n";
  out += html_details("Each layer and head", head_table(row, name), page);
  std::string more;
  for (const bool is_bias : {false, true}) {
    const std::vector<double>& cells = is_bias ? row.bias : row.merged;
    if (cells.empty()) continue;
    TextMap map =
        map_of(row, cells, name + (is_bias ? ": mean bias of entries" : ": mean merged mass"),
               is_bias ? "bias" : "merged mass ratio less 1");
    set_range(map);
    map.numbers = bin_table(row, map);
    more += svg_text_map(map, page);
  }
  if (!row.residual.empty()) more += residual_map(row, name, page);
  if (!more.empty())
    out += "<details><summary>Merging, bias and residuals</summary>\n" + more + "</details>\n";
  return out;
}

using Sample = std::tuple<std::size_t, std::string, std::string, std::string, std::size_t,
                          std::size_t, std::size_t>;

std::string title_of(const KeptRow& row) {
  const RowKey& k = row.key;
  return concat(setting_text(k.suite, k.query), ": ", task_text(k.task, k.length), ", sample ",
                k.index);
}

}  // namespace

std::string variant_name(const RowKey& key) {
  const bool f16 = key.type_k == "f16" && key.type_v == "f16";
  const bool whole = key.method == "full" && key.keep == "100%";
  return shorten(key.label, 60) +
         (f16 ? "" : " (" + shorten(key.type_k, 20) + "/" + shorten(key.type_v, 20) + ")") +
         (whole ? "" : " @ " + shorten(key.keep, 30));
}

HtmlSection kept_section(const Summary& summary, PageState& page) {
  HtmlSection out{"What was kept", {}};
  std::map<Sample, std::vector<const KeptRow*>> samples;
  std::vector<Sample> order;
  std::size_t n_rows = 0;
  for (const SourcedRow& sourced : summary.rows) {
    const auto* row = std::get_if<KeptRow>(sourced.row);
    if (row == nullptr) continue;
    ++n_rows;
    const RowKey& k = row->key;
    const Sample sample{sourced.source, k.suite, k.query, k.task, k.length, k.index, k.question};
    std::vector<const KeptRow*>& rows = samples[sample];
    if (rows.empty()) order.push_back(sample);
    rows.push_back(row);
  }
  if (n_rows == 0) return out;
  out.body =
      "<p>Layers and their KV heads down, the text across in bins of equal length; the strip above "
      "is "
      "the mean of all heads. A bin's tokens and text show while pointing at it. Layers are those "
      "that "
      "are condensed.</p>\n";
  std::size_t n_shown = 0;
  for (std::size_t s = 0; s < order.size() && n_shown < kMostPictures; ++s) {
    const std::vector<const KeptRow*>& rows = samples.at(order[s]);
    std::string body;
    for (const KeptRow* row : rows) {
      const std::optional<KeptRow> small = reduced(*row);
      if (!small) continue;
      const std::string picture = pictures(*small, variant_name(row->key), page);
      n_shown += picture.empty() ? 0 : 1;
      body += picture;
    }
    if (body.empty()) continue;
    const std::string title =
        section_title(summary, std::get<0>(order[s]), shorten(title_of(*rows.front()), 200));
    out.body +=
        s == 0 ? "<p><strong>" + html_text(title) + "</strong></p>\n" + body
               : "<details><summary>" + html_text(title) + "</summary>\n" + body + "</details>\n";
  }
  if (n_shown < n_rows)
    out.body += concat("<p class=\"note\">", n_shown, " of ", n_rows,
                       " pictures are drawn, so that the page stays small; "
                       "<code>precis report --format cells</code> has all.</p>\n");
  return out;
}

}  // namespace precis
