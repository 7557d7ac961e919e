// How the costs grow: a decode step with the entries of the cache, condensing and reading with the
// prompt, memory with the entries; each with a fit that says how straight the line is.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/session.h"
#include "eval/statistics.h"
#include "eval/turns.h"

namespace precis {

struct GrowthOptions {
  std::vector<std::size_t> entries;  // per KV head, synthetic
  std::vector<std::size_t> prompts;  // tokens, really read
  CondenseRequest condense;          // what is timed as condensing; not `full`
  std::size_t n_gen = 8;             // timed tokens of a decode test
  // Rows of all layers together may take this much; beyond it layers share rows (which are then
  // still far larger than any cache, see GrowthPoint::n_distinct_layers).
  std::size_t memory_bytes = 0;
  TurnOptions turns;
  std::function<void(std::size_t done, std::size_t total, const std::string& name)> progress;
};

struct GrowthPoint {
  std::string series;                 // "decode", "compress", "prefill" or "memory"
  std::size_t n = 0;                  // entries per KV head, or prompt tokens
  double measured = 0;                // milliseconds (a step; a prompt), median; bytes for "memory"
  double fitted = 0;                  // by the series' fit; entries x row bytes for "memory"
  std::size_t n_distinct_layers = 0;  // with rows of their own; 0: all
};

struct GrowthSeries {
  std::string name;
  Fit fit;                                // milliseconds; of "memory": unused but worst_residual
  std::optional<double> quadratic_share;  // of the largest prompt's time; prefill only
};

struct Growth {
  std::vector<GrowthPoint> points;
  std::vector<GrowthSeries> series;  // only those with two points or more
};

// Throws Error(kInvalidArgument) like run_bench.
Growth measure_growth(const std::shared_ptr<const Engine>& engine, const GrowthOptions& options,
                      const Clock& clock);

}  // namespace precis
