// What a compression did, as JSON: as cache files hold it and as programs read it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "compress/report.h"

namespace precis {

// Longer ones are not read: the report of 126 layers of 64 heads with residual entries has 2 MB,
// and a JSON text takes many times its length in memory.
inline constexpr std::size_t kMostReportBytes = std::size_t{4} << 20;

// The report as one JSON object: all but method and keep, which stand beside it, and mass_ratios.
// What is no finite number becomes null.
std::string report_json(const CompressionReport& report);
// Sets all of these members. Returns why the text is no such report, else nothing; `report` may
// then be half set.
std::optional<std::string> parse_report(std::string_view text, CompressionReport& report);

}  // namespace precis
