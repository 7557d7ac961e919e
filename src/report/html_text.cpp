#include "report/html_text.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/fields.h"
#include "report/number_text.h"

namespace precis {
namespace {

// Of bytes: no name makes a page large.
constexpr std::size_t kLongestCell = 400;
constexpr std::size_t kLongestTitle = 160;

std::string mark_html(CellMark mark) {
  // A sign, a colour and, for those who hear the page, a word.
  if (mark == CellMark::kBetter)
    return " <span class=\"better\" aria-hidden=\"true\">&#9650;</span><span class=\"heard\"> "
           "better</span>";
  if (mark == CellMark::kWorse)
    return " <span class=\"worse\" aria-hidden=\"true\">&#9660;</span><span class=\"heard\"> "
           "worse</span>";
  return {};
}

void add_row(const Table& table, const std::vector<TableCell>& row, std::string& out) {
  out += "<tr>";
  for (std::size_t i = 0; i < row.size(); ++i) {
    const TableCell& cell = row[i];
    out += i == 0 ? "<th scope=\"row\"" : "<td";
    if (i > 0 && table.columns[i].is_number) out += " class=\"n\"";
    if (cell.number && std::isfinite(*cell.number))
      out += " data-v=\"" + print_number(*cell.number) + "\"";
    out += ">" + html_text(shorten(cell.text, kLongestCell)) + mark_html(cell.mark);
    out += i == 0 ? "</th>" : "</td>";
  }
  out += "</tr>\n";
}

}  // namespace

std::string html_text(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        // Control characters are not allowed in HTML.
        out += static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t' ? ' ' : c;
    }
  }
  return out;
}

int heat_level(double value, double low, double high) {
  if (!(high > low)) return value > 0 ? 9 : 0;
  const double place = (value - low) / (high - low);
  return static_cast<int>(std::clamp(std::floor(place * 10), 0.0, 9.0));
}

std::string html_table(const Table& table, PageState& page) {
  const std::string id = page.next_id();
  std::string out = "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-labelledby=\"" + id +
                    "\">\n<table class=\"sortable\"><caption id=\"" + id + "\">" +
                    html_text(shorten(table.caption, kLongestCell)) + "</caption>\n<thead><tr>";
  for (const TableColumn& column : table.columns) {
    out += column.is_number ? "<th scope=\"col\" class=\"n\"" : "<th scope=\"col\"";
    if (!column.meaning.empty())
      out += " title=\"" + html_text(shorten(column.meaning, kLongestTitle)) + "\"";
    out += ">" + html_text(shorten(column.title, kLongestTitle)) + "</th>";
  }
  out += "</tr></thead>\n<tbody>\n";
  std::size_t n_rows = 0;
  for (; n_rows < table.rows.size(); ++n_rows) {
    const std::size_t n_bytes = out.size();
    add_row(table, table.rows[n_rows], out);
    if (out.size() <= page.table_bytes_left) continue;
    out.resize(n_bytes);
    break;
  }
  page.table_bytes_left -= std::min(out.size(), page.table_bytes_left);
  out += "</tbody></table></div>\n";
  if (n_rows < table.rows.size())
    out += concat("<p class=\"note\">The first ", n_rows, " of ", table.rows.size(),
                  " rows; <code>precis report --format csv</code> has all.</p>\n");
  for (const std::string& note : table.notes)
    out += "<p class=\"note\">" + html_text(shorten(note, kLongestCell)) + "</p>\n";
  return out;
}

std::string html_details(const std::string& summary, const Table& table, PageState& page) {
  return "<details><summary>" + html_text(summary) + "</summary>\n" + html_table(table, page) +
         "</details>\n";
}

}  // namespace precis
