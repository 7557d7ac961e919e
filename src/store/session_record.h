// The small sections of a cache file as values: what is known of a session beside its rows.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/session_state.h"
#include "store/cache_file.h"
#include "store/cache_reader.h"

namespace precis {

// Sections info, tokens, text and report.
struct SessionRecord {
  ModelFingerprint model;
  CacheMeta meta;
  std::size_t next_position = 0;
  std::size_t n_read = 0;
  RowTypes rows;
};

std::vector<std::uint8_t> encode_info(const SessionRecord& record);
// Throws through `reader` if anything is out of its range.
SessionRecord read_record(const CacheReader& reader);

// What does not fit together, in a record to be written or one that was read.
std::optional<std::string> fault_of(const SessionRecord& record);

// The numbers of a model that caches depend on; the rest stays as it is by default.
ModelConfig shape_of(const ModelFingerprint& model);

// The report as one JSON object: all but method and keep, which are in info, and mass_ratios.
std::string report_json(const CompressionReport& report);
// Returns why the text is no such report, else nothing.
std::optional<std::string> parse_report(std::string_view text, CompressionReport& report);

}  // namespace precis
