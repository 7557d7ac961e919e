// A table for people, before it becomes Markdown or HTML.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace precis {

// How a cell is to be seen, beside its text.
enum class CellMark { kNone, kBetter, kWorse };

struct TableCell {
  std::string text;
  std::optional<double> number;  // by which columns are sorted; nothing: by the text
  CellMark mark = CellMark::kNone;
};

struct TableColumn {
  std::string title;
  bool is_number = true;
  std::string meaning;  // a sentence for those who wonder; may be empty
};

struct Table {
  std::string caption;
  std::vector<TableColumn> columns;  // the first one names the row
  std::vector<std::vector<TableCell>> rows;
  std::vector<std::string> notes;  // below the table
};

// GitHub's Markdown: caption in bold, columns padded, numbers to the right; '|', '<', '>', '&',
// '*',
// '_', '`', '\' and brackets in texts are escaped, line breaks become blanks.
std::string print_markdown(const Table& table);

// `text` as Markdown that shows it as it is; line breaks become blanks.
std::string markdown_text(const std::string& text);

}  // namespace precis
