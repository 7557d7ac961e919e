// One line of a result file. A result file is JSON Lines: first a `run` line that says what was
// run, then rows in an order that follows from it alone, without times, so that a run that was
// killed and resumed, or one on another day, gives the same bytes. Times go to a second file of
// the same form. docs/RESULTS_FORMAT.md explains the fields.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace precis {

// What a row is about. Rows that agree in everything but method, keep and row types are a pair for
// comparisons between methods.
struct RowKey {
  std::string suite;         // "ruler", "longbench", "needle", "ask", "fidelity"
  std::string task;          // "niah_single_1"; fidelity: the text's name
  std::size_t length = 0;    // tokens asked for; 0: as long as it is
  std::size_t index = 0;     // sample or passage
  std::size_t question = 0;  // of the sample
  std::string query;         // "agnostic" (condensed before the question is known) or "aware"
  std::string label;         // short name of the method, as the user wrote it
  std::string method;        // canonical SPEC
  std::string keep;          // "25%"; "100%" for full
  std::string type_k;        // "f16" ...
  std::string type_v;

  bool operator==(const RowKey&) const = default;
};

// What a run works on at a time: a sample or a passage. The rows of a unit agree in these.
struct UnitKey {
  std::string suite;
  std::string task;
  std::size_t length = 0;
  std::size_t index = 0;

  bool operator==(const UnitKey&) const = default;
};

UnitKey unit_of(const RowKey& key);

// What a run needs to be repeated: `settings` are the command's options by their long names
// without dashes, in the order of the option table, each with all its values.
struct RunRow {
  using Lists = std::vector<std::pair<std::string, std::vector<std::string>>>;
  using Texts = std::vector<std::pair<std::string, std::string>>;
  int format = 1;
  std::string suite;
  std::string version;
  std::string commit;
  std::string model;  // file name without its folder
  std::string model_sha256;
  std::string model_type;  // "llama 135M Q4_1"
  std::uint64_t seed = 0;
  std::size_t threads = 0;
  std::size_t shard = 1;  // 1 ... n_shards
  std::size_t n_shards = 1;
  std::vector<std::string> left_out;  // tasks that could not be run, each with its reason
  Lists settings;
  Texts input_sha256;  // file name, hash
};

// Where a row comes from, so that one that is cut out of its file still says it. RunLog fills it
// in.
struct RowOrigin {
  std::string version;
  std::string model_sha256;
  std::uint64_t seed = 0;
};

// One answer.
struct ScoreRow {
  RowKey key;
  RowOrigin origin;
  bool used_template = false;
  std::string metric;            // metric_name()
  double score = 0;              // in [0, 1]
  bool exact = false;            // the answer is the reference, not just contains it
  std::optional<double> chance;  // the score of guessing
  std::size_t n_context = 0;     // tokens condensed
  std::size_t n_question = 0;    // tokens read after that
  std::size_t n_answer = 0;      // tokens drawn
  bool ended = false;            // the model ended its answer itself
  std::size_t n_truncated = 0;   // tokens cut from the document
  std::size_t kv_bytes = 0;      // live cache after condensing
  std::size_t kv_bytes_full = 0;
  std::size_t n_entries = 0;  // over layers and KV heads
  std::string prompt_sha256;  // of all prompt tokens, little-endian int32
  std::string answer;
  std::vector<std::string> references;  // empty: a question without a known answer, no score

  bool is_scored() const { return !references.empty(); }
};

// One passage: prefix condensed, then the true continuation read token by token beside the full
// cache.
struct FidelityRow {
  RowKey key;
  RowOrigin origin;
  std::size_t n_context = 0;
  std::size_t n_continuation = 0;
  std::size_t kv_bytes = 0;
  std::size_t kv_bytes_full = 0;
  std::size_t n_entries = 0;
  double mean_kl = 0;  // nats a token, to the full cache
  double median_kl = 0;
  double p99_kl = 0;
  double same_top = 0;             // share of tokens
  double log_likelihood = 0;       // mean of the true tokens, nats
  double log_likelihood_full = 0;  // of the full cache
  // Relative error of attention's output over the continuation's queries, which no method saw:
  // ||o - o_full|| / ||o_full||, root mean square over queries, [compressible layer][KV head].
  std::vector<std::vector<double>> output_error;
};

// What was kept of one sample's context: for pictures. Cells are [layer][KV head][bin]; bin b of
// n_bins covers positions [b * n_tokens / n_bins, (b + 1) * n_tokens / n_bins).
struct KeptRow {
  RowKey key;
  std::size_t n_tokens = 0;
  std::size_t n_layers = 0;  // compressible ones
  std::size_t n_heads = 0;
  std::size_t n_bins = 0;
  std::vector<double> kept;        // share of the bin's positions that have an entry
  std::vector<double> merged;      // mean merged mass ratio R - 1 of the bin's entries; empty: none
  std::vector<double> bias;        // mean bias of the bin's entries; empty: none
  std::vector<double> residual;    // [layer][head] share of entries that are residual; empty: none
  std::vector<std::string> words;  // [n_bins] first characters of each bin's text
};

// Times of one row of the result file.
struct TimingRow {
  RowKey key;
  double prefill_ms = 0;  // shared by all rows of the sample
  double compress_ms = 0;
  double question_ms = 0;
  double decode_ms = 0;
  std::size_t n_decoded = 0;
  std::size_t peak_bytes = 0;  // resident memory of the process at its highest so far
};

using ResultRow = std::variant<RunRow, ScoreRow, FidelityRow, KeptRow, TimingRow>;

// One line of JSON without the line break. Text that is not valid UTF-8 gets U+FFFD; a number that
// is not finite becomes null, which parse_row refuses.
std::string print_row(const ResultRow& row);

// Throws Error(kFormat) with what is wrong: not JSON (at which byte), an unknown kind, a missing
// field or one of the wrong type (its name), a list of the wrong size (both numbers), a number that
// is not finite or beyond 1e100, a share or a score outside 0 to 1, an unknown format, more than
// 10,000 fields, 2^24 items or 32 levels of nesting. Fields that are not known are ignored; of a
// field that is there twice the last one counts.
ResultRow parse_row(std::string_view line);

// The row's key; nullptr for a RunRow.
const RowKey* key_of(const ResultRow& row);

}  // namespace precis
