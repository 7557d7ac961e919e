// What result files say: means with intervals, and how methods differ, in tables of numbers. How
// they are shown is the business of report_tables.h, csv.h and html_report.h.
//
// Rows are compared only where everything but method, keep and row types is equal: the same model
// and seed (a Source), suite, setting of the question, task, length, sample, question, and prompt.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "report/paired.h"
#include "report/result_file.h"

namespace precis {

// Runs of one model with one seed.
struct Source {
  std::string model;
  std::string model_sha256;
  std::string model_type;
  std::uint64_t seed = 0;
  std::string name;                 // model, with the seed or the hash where models share it
  std::vector<const RunRow*> runs;  // different ones
};

// A method at a budget in row types: a column of tables and a point of charts. The same label with
// another SPEC, keep or type is another variant.
struct Variant {
  std::string label;
  std::string method;  // SPEC
  std::string keep;
  std::string type_k;
  std::string type_v;
  std::string line;  // what a chart joins to a line: label, with SPEC and types where needed
  std::string name;  // the line and its budget: "selkv @ 25%"
  bool is_full() const { return method == "full"; }
};

struct ScoreCell {
  std::size_t n_samples = 0;
  std::size_t n_answers = 0;
  Estimate score;
  double exact = 0;          // share of answers that are the reference
  double answer_tokens = 0;  // mean length
  double ended = 0;          // share of answers that the model ended itself
  double kept_share = 0;     // mean of kv_bytes / kv_bytes_full
  double kv_bytes = 0;       // means
  double kv_bytes_full = 0;
  double n_entries = 0;
  double truncated_samples = 0;          // share of samples whose document was cut
  double truncated_tokens = 0;           // mean over all samples
  std::optional<Comparison> against;     // to the baseline of its variant
  std::optional<double> longer_answers;  // share at least 1.5 times as long as the baseline's
  std::size_t unpaired = 0;              // answers without a baseline answer to the same prompt
};

// A task at a length, or an average over tasks.
struct ScoreLine {
  std::string task;  // an average: "all tasks"
  std::size_t length = 0;
  std::string metric;
  std::optional<double> chance;
  bool is_average = false;
  std::vector<std::optional<ScoreCell>> cells;  // one for each variant
  // Averages: tasks (at each length) that a variant has results for, and in all.
  std::vector<std::size_t> n_tasks;
  std::size_t n_tasks_of_all = 0;
};

struct ScoreTable {
  std::size_t source = 0;
  std::string suite;
  std::string query;
  std::vector<Variant> variants;
  std::vector<std::optional<std::size_t>> baselines;  // of each variant: another variant
  std::vector<ScoreLine> tasks;
  std::vector<ScoreLine> averages;  // over everything, then for each length where there are several
};

struct FidelityCell {
  std::size_t n_passages = 0;
  std::size_t n_tokens = 0;
  Estimate kl;           // mean over tokens, nats, passages resampled
  double median_kl = 0;  // mean over passages of their medians
  double p99_kl = 0;     // of their 99th percentiles
  Estimate same_top;
  Estimate log_likelihood_change;  // to the full cache, nats a token
  double kept_share = 0;
  double kv_bytes = 0;
  double kv_bytes_full = 0;
  double n_entries = 0;
  std::vector<std::vector<double>> output_error;  // mean over passages; empty: shapes differ
  double mean_output_error = 0;
  std::optional<Comparison> kl_against;  // to the baseline, unless that is the full cache
};

struct FidelityLine {
  std::string task;
  std::size_t length = 0;
  std::vector<std::optional<FidelityCell>> cells;
};

struct FidelityTable {
  std::size_t source = 0;
  std::string suite;
  std::string query;
  std::vector<Variant> variants;
  std::vector<std::optional<std::size_t>> baselines;
  std::vector<FidelityLine> texts;
};

// Medians over samples (prefill, condensing) and answers.
struct TimingCell {
  std::size_t n_timed = 0;  // 0: only bytes are known
  std::optional<double> prefill_ms;
  std::optional<double> compress_ms;
  std::optional<double> question_ms;
  std::optional<double> tokens_per_s;  // decoding
  std::optional<double> peak_bytes;    // highest
  std::optional<double> kv_bytes;      // means
  std::optional<double> kv_bytes_full;
};

struct TimingLine {
  std::size_t length = 0;
  std::vector<std::optional<TimingCell>> cells;
};

struct TimingTable {
  std::size_t source = 0;
  std::string suite;
  std::string query;
  std::vector<Variant> variants;
  std::vector<TimingLine> lengths;
};

// A row with its source and where it stands.
struct SourcedRow {
  std::size_t source = 0;
  const ResultRow* row = nullptr;
};

struct Summary {
  std::vector<Source> sources;
  std::vector<SourcedRow> rows;  // without those that are there twice
  std::vector<ScoreTable> scores;
  std::vector<FidelityTable> fidelity;
  std::vector<TimingTable> timing;
  std::size_t n_unscored = 0;      // answers without references: in no table of scores
  std::string against;             // as asked for
  std::vector<std::string> notes;  // what a reader must know: missing shards, different versions
};

struct SummaryOptions {
  // LABEL or LABEL@KEEP of the baseline. Without KEEP a variant is compared with that label at its
  // own keep if there is one, else with the only one. Empty: "full" where there are such rows.
  std::string against;
  Bootstrap bootstrap;
};

// `files` must live as long as the summary. A row that two files have alike counts once. Throws
// Error(kInvalidArgument): two different rows for the same answer, naming both files; a baseline
// that no row has, naming those there are; more than 500 variants in one table.
Summary summarise(const std::vector<ResultFile>& files, const SummaryOptions& options = {});

}  // namespace precis
