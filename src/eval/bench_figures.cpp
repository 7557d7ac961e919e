#include "eval/bench_figures.h"

#include <algorithm>
#include <cstdint>

#include "eval/cost_model.h"
#include "eval/statistics.h"

namespace precis {
namespace {

bool is_full(const BenchRow& row) { return row.method == "full"; }

double live_bytes(const BenchRow& row, const StepBytes& bytes) {
  return static_cast<double>(row.kv_bytes) +
         static_cast<double>(bytes.per_token) * static_cast<double>(row.n_gen * row.n_sessions) / 2;
}

double read_bytes(const BenchRow& row, const StepBytes& bytes) {
  return static_cast<double>(bytes.weights) + live_bytes(row, bytes);
}

const BenchRow* find_full(std::span<const BenchRow> rows, const BenchRow& like) {
  for (const BenchRow& row : rows)
    if (is_full(row) && row.test_name() == like.test_name() && row.synthetic == like.synthetic &&
        row.n_sessions == like.n_sessions)
      return &row;
  return nullptr;
}

std::vector<CostSample> compress_samples(std::span<const BenchRow> rows, const BenchRow& like) {
  std::vector<CostSample> samples;
  for (const BenchRow& row : rows) {
    if (row.method != like.method || row.keep != like.keep || row.type_k != like.type_k ||
        row.type_v != like.type_v || !row.compress_ms)
      continue;
    const std::size_t n = row.n_depth > 0 ? row.n_depth : row.n_prompt;
    samples.push_back({static_cast<double>(n), *row.compress_ms / 1e3});
  }
  return samples;
}

}  // namespace

void add_figures(std::span<BenchRow> rows, const StepBytes& bytes) {
  for (BenchRow& row : rows) {
    if (row.n_gen == 0) continue;
    const double seconds = median_of(row.seconds);
    row.gb_per_s = read_bytes(row, bytes) * static_cast<double>(row.n_gen) / seconds / 1e9;
    if (row.read_bandwidth_gb_s.value_or(0) > 0)
      row.share_of_bandwidth = *row.gb_per_s / *row.read_bandwidth_gb_s;
    const BenchRow* full = find_full(rows, row);
    if (full == nullptr || is_full(row)) continue;
    const double speed_up = median_of(paired_ratios(full->seconds, row.seconds));
    row.bound_share = speed_up / (read_bytes(*full, bytes) / read_bytes(row, bytes));
  }
}

void add_break_even(std::span<BenchRow> rows, const StepBytes& bytes) {
  std::vector<CostSample> steps;
  for (const BenchRow& row : rows)
    if (row.n_gen > 0 && row.n_sessions == 1)
      steps.push_back(
          {live_bytes(row, bytes), median_of(row.seconds) / static_cast<double>(row.n_gen)});
  for (BenchRow& row : rows) {
    const BenchRow* full = find_full(rows, row);
    if (row.n_gen == 0 || row.n_depth == 0 || row.n_sessions != 1 || is_full(row) ||
        full == nullptr)
      continue;
    const std::vector<CostSample> compress = compress_samples(rows, row);
    const auto depth = static_cast<double>(row.n_depth);
    const BreakEvenResult found =
        break_even_prompt({steps, compress, static_cast<double>(full->kv_bytes) / depth,
                           static_cast<double>(row.kv_bytes) / depth, row.n_gen});
    if (found.kind == BreakEven::kNever) row.break_even_prompt = SIZE_MAX;
    if (found.kind == BreakEven::kFrom) row.break_even_prompt = found.n_prompt;
  }
}

}  // namespace precis
