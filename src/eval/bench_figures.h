// The figures of bench rows that follow from their times and bytes; separate from measuring, so
// that they can be checked by hand.
#pragma once

#include <span>

#include "eval/bench.h"

namespace precis {

// What one decoded token reads and leaves behind.
struct StepBytes {
  std::size_t weights = 0;    // read
  std::size_t per_token = 0;  // added to the cache
};

// Fills gb_per_s, share_of_bandwidth and bound_share of the decode rows of one test, from seconds,
// ratios, kv_bytes and read_bandwidth_gb_s. Live bytes of a row: its cache at the depth and half of
// what the test adds to it.
//   gb_per_s     (weights + live bytes) * steps / median time
//   bound_share  (speed over the `full` row, median of the pairs) /
//                ((weights + live bytes of full) / (weights + own live bytes));
//                only in rows of other methods, and only if there is a `full` row
void add_figures(std::span<BenchRow> rows, const StepBytes& bytes);

// Fills break_even_prompt of the condensed decode rows of a run (see cost_model.h): a step's cost
// from all decode rows, condensing from the rows of the same method and budget that measured it,
// the bytes saved from the `full` row of the same test. Nothing where one of them is missing.
void add_break_even(std::span<BenchRow> rows, const StepBytes& bytes);

}  // namespace precis
