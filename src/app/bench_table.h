// The results of `precis bench` as a table for people or for machines. Columns that llama-bench
// also has carry its names; docs/BENCHMARKS.md says what each means.
#pragma once

#include <string>
#include <vector>

#include "eval/bench.h"
#include "eval/bench_growth.h"

namespace precis::app {

enum class TableFormat { kMarkdown, kCsv, kJson, kJsonLines };

// "md", "csv", "json" or "jsonl". Throws Error(kInvalidArgument).
TableFormat parse_table_format(const std::string& name);

// Where and with what the rows of one engine were measured.
struct BenchSetting {
  std::string build_commit;
  std::string version;
  std::string cpu_info;
  std::string backends;
  std::string model_filename;
  std::string model_type;  // "llama 135M Q4_1"
  std::size_t model_size = 0;
  std::size_t model_n_params = 0;
  std::size_t n_threads = 0;
  WeightsReport weights;
  std::string test_time;  // UTC, ISO 8601
};

struct BenchRecord {
  BenchSetting setting;
  BenchRow row;
};

// The whole output, with a line break at its end. REQUIRES: at least one record.
std::string print_bench(const std::vector<BenchRecord>& records, TableFormat format);

// csv and jsonl: the points; json: an object with points and series; md: both, and the machine.
std::string print_growth(const Growth& growth, const BenchSetting& setting, TableFormat format);

// 512.0 KiB, 1.5 GiB.
std::string print_bytes(double bytes);
// 134.52M, 1.50B.
std::string print_count(double n);

}  // namespace precis::app
