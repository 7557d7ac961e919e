// Heat maps as SVG: few cells with their numbers in them, or many as colours alone.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "report/html_text.h"

namespace precis {

// Rows and columns with names; a cell without a value stays empty.
struct NumberMap {
  std::string title;
  std::string row_title;     // "depth"
  std::string column_title;  // "tokens"
  std::vector<std::string> rows;
  std::vector<std::string> columns;
  std::vector<std::vector<std::optional<double>>> cells;  // [row][column]
  double low = 0;                                         // of the colours
  double high = 1;
  int digits = 0;
  double scale = 1;  // numbers times this are shown
};

// Numbers stand in the cells where there are at most 64 columns.
std::string svg_number_map(const NumberMap& map, PageState& page);

// Layers and heads down, bins of the text across.
struct TextMap {
  std::string title;
  std::string quantity;  // "kept"
  std::size_t n_layers = 0;
  std::size_t n_heads = 0;
  std::size_t n_bins = 0;
  std::size_t n_tokens = 0;
  std::vector<double> cells;       // [layer][head][bin]
  std::vector<std::string> words;  // of each bin; may be empty
  double low = 0;
  double high = 1;
  bool is_share = false;  // values are shown in percent
  Table numbers;
};

std::string svg_text_map(const TextMap& map, PageState& page);

// The mean over layers and heads of every bin.
std::vector<double> bin_means(const TextMap& map);

// The words of all bins, shaded by values from low to high.
std::string shaded_text(const std::vector<std::string>& words, const std::vector<double>& values,
                        double low, double high);

}  // namespace precis
