// What `precis cache` says of a cache file and of an answer from one.
#pragma once

#include <string>

#include "engine/generate.h"
#include "store/cache_file.h"

namespace precis::app {

// A few lines for a person; one JSON object on one line.
std::string to_text(const CacheSummary& summary, const std::string& path);
std::string to_json(const CacheSummary& summary, const std::string& path);

struct CacheAnswer {
  Generation generation;
  std::size_t n_question = 0;
  std::size_t next_position = 0;
  std::size_t kv_bytes_end = 0;  // with question and answer
  std::size_t peak_bytes = 0;
  double load_ms = 0;  // of the cache alone, without the model
  double question_ms = 0;
  std::uint32_t seed = 0;
  std::size_t threads = 0;
};

std::string to_text(const CacheAnswer& answer, const CacheSummary& summary,
                    const std::string& path);
std::string to_json(const CacheAnswer& answer, const CacheSummary& summary,
                    const std::string& path);

}  // namespace precis::app
