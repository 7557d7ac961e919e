// A summary for spreadsheets and scripts: one table with a line for each task, average, text or
// length and variant.
#pragma once

#include <string>

#include "report/summary.h"

namespace precis {

// Column `table` says which figures a line has: "task", "average", "fidelity" or "speed"; what does
// not apply is empty. Numbers have all their digits and no units: scores from 0 to 1, bytes,
// milliseconds, nats. RFC 4180, lines end with a line feed. A text that begins with '=', '+', '-',
// '@', a tab or a carriage return gets a leading apostrophe, so that spreadsheets take it as text.
std::string print_csv(const Summary& summary);

// What the heat maps show, in the same form: a line for each bin of each layer and KV head of every
// `kept` row, and for each layer and head of every passage's output error. Column `table` says
// which: "kept" or "output_error".
std::string print_cells_csv(const Summary& summary);

// One field, quoted where needed.
std::string csv_text(const std::string& text);

}  // namespace precis
