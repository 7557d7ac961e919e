#include "report/table.h"

#include <algorithm>
#include <cctype>
#include <string_view>

namespace precis {
namespace {

// Characters on screen: continuation bytes of UTF-8 take no room.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string padded(const std::string& text, std::size_t width, bool to_the_right) {
  const std::size_t n = width_of(text);
  const std::string blanks(n < width ? width - n : 0, ' ');
  return to_the_right ? blanks + text : text + blanks;
}

std::string marked(const TableCell& cell) {
  const std::string text = markdown_text(cell.text);
  if (cell.mark == CellMark::kBetter) return text + " (better)";
  if (cell.mark == CellMark::kWorse) return text + " (worse)";
  return text;
}

}  // namespace

// Only what would be taken as markup: an underscore inside of a word is none, nor are brackets
// without a target.
std::string markdown_text(const std::string& text) {
  const auto is_word = [&text](std::size_t i) {
    return i < text.size() && std::isalnum(static_cast<unsigned char>(text[i])) != 0;
  };
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    bool escaped = std::string_view("|<>&*`\\#~").find(c) != std::string_view::npos;
    if (c == '_') escaped = !is_word(i - 1) || !is_word(i + 1);
    if (c == ']') escaped = i + 1 < text.size() && (text[i + 1] == '(' || text[i + 1] == '[');
    if (escaped) out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out;
}

std::string print_markdown(const Table& table) {
  std::vector<std::vector<std::string>> texts = {{}};
  for (const TableColumn& column : table.columns) texts[0].push_back(markdown_text(column.title));
  for (const auto& row : table.rows) {
    texts.emplace_back();
    for (const TableCell& cell : row) texts.back().push_back(marked(cell));
  }
  std::vector<std::size_t> widths(table.columns.size(), 3);
  for (const auto& row : texts)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  std::string out = "**" + markdown_text(table.caption) + "**\n\n";
  for (std::size_t r = 0; r < texts.size(); ++r) {
    for (std::size_t i = 0; i < texts[r].size(); ++i)
      out += "| " + padded(texts[r][i], widths[i], table.columns[i].is_number) + " ";
    out += "|\n";
    if (r > 0) continue;
    for (std::size_t i = 0; i < widths.size(); ++i)
      out += "|" + std::string(widths[i] + 1, '-') + (table.columns[i].is_number ? ":" : "-");
    out += "|\n";
  }
  for (const std::string& note : table.notes) out += "\n" + markdown_text(note) + "\n";
  return out + "\n";
}

}  // namespace precis
