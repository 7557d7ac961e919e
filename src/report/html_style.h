// Style and script of the report. Both are constants, so that the page can name their hashes and
// forbid everything else.
#pragma once

#include <string>

namespace precis {

std::string report_style();
extern const char* const kReportScript;

}  // namespace precis
