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

}  // namespace precis
