// Text and tables in HTML, and what is counted over a whole page.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "report/table.h"

namespace precis {

// What a page may still hold, so that it stays small whatever the files hold, and its ids.
struct PageState {
  std::size_t n_ids = 0;
  std::size_t table_bytes_left = 3000000;
  std::size_t drawing_bytes_left = 1700000;
  std::size_t picture_cells_left = 120000;  // at most some 14 bytes each
  std::size_t charts_left = 120;
  std::size_t n_left_out = 0;  // charts and pictures that there was no room for

  std::string next_id() { return "i" + std::to_string(++n_ids); }
};

// Shows any text as it is, in an element or in a quoted attribute.
std::string html_text(std::string_view text);

// Level 0 to 9 of a value between low and high, for colours of heat maps.
int heat_level(double value, double low, double high);

// The table in a region of its own that scrolls and takes the focus. What the page has no room for
// is left out, and a line below says how much that is.
std::string html_table(const Table& table, PageState& page);
// The same, folded away under `summary`.
std::string html_details(const std::string& summary, const Table& table, PageState& page);

}  // namespace precis
