#include "report/csv.h"

#include <cmath>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/fields.h"

namespace precis {
namespace {

const std::vector<std::string>& columns() {
  static const std::vector<std::string> names = {"table",
                                                 "model",
                                                 "model_sha256",
                                                 "seed",
                                                 "suite",
                                                 "query",
                                                 "task",
                                                 "length",
                                                 "label",
                                                 "method",
                                                 "keep",
                                                 "type_k",
                                                 "type_v",
                                                 "metric",
                                                 "n_tasks",
                                                 "n_samples",
                                                 "n_answers",
                                                 "kept_share",
                                                 "kv_bytes",
                                                 "kv_bytes_full",
                                                 "n_entries",
                                                 "chance",
                                                 "score",
                                                 "score_low",
                                                 "score_high",
                                                 "exact",
                                                 "answer_tokens",
                                                 "ended",
                                                 "longer_answers",
                                                 "truncated_samples",
                                                 "truncated_tokens",
                                                 "kl_mean",
                                                 "kl_mean_low",
                                                 "kl_mean_high",
                                                 "kl_median",
                                                 "kl_p99",
                                                 "same_top",
                                                 "same_top_low",
                                                 "same_top_high",
                                                 "log_likelihood_change",
                                                 "log_likelihood_change_low",
                                                 "log_likelihood_change_high",
                                                 "output_error",
                                                 "baseline",
                                                 "difference",
                                                 "difference_low",
                                                 "difference_high",
                                                 "wins",
                                                 "ties",
                                                 "losses",
                                                 "unpaired",
                                                 "distinguishable",
                                                 "prefill_ms",
                                                 "compress_ms",
                                                 "question_ms",
                                                 "decode_tokens_per_s",
                                                 "peak_bytes",
                                                 "n_timed"};
  return names;
}

// One line of the table; fields are set by name, in any order.
class Line {
 public:
  Line() : fields_(columns().size()) {}

  void text(std::string_view name, const std::string& value) { field(name) = csv_text(value); }
  void number(std::string_view name, double value) {
    field(name) = std::isfinite(value) ? print_number(value) : "";
  }
  void number(std::string_view name, const std::optional<double>& value) {
    if (value) number(name, *value);
  }
  void count(std::string_view name, std::size_t value) { field(name) = std::to_string(value); }
  void estimate(const std::string& name, const Estimate& value) {
    number(name, value.value);
    if (!value.interval) return;
    number(name + "_low", value.interval->low);
    number(name + "_high", value.interval->high);
  }
  void comparison(const std::optional<Comparison>& value) {
    if (!value) return;
    estimate("difference", value->difference);
    count("wins", value->wins);
    count("ties", value->ties);
    count("losses", value->losses);
    field("distinguishable") = value->distinguishable ? "true" : "false";
  }
  void add_to(std::string& out) const {
    for (std::size_t i = 0; i < fields_.size(); ++i) out += (i > 0 ? "," : "") + fields_[i];
    out += '\n';
  }

 private:
  std::string& field(std::string_view name) {
    for (std::size_t i = 0; i < fields_.size(); ++i)
      if (columns()[i] == name) return fields_[i];
    PRECIS_CHECK(false, name);
  }
  std::vector<std::string> fields_;
};

template <class AnyTable>
Line begin_line(const char* kind, const Summary& summary, const AnyTable& table, std::size_t v) {
  Line line;
  const Source& source = summary.sources[table.source];
  const Variant& variant = table.variants[v];
  line.text("table", kind);
  line.text("model", source.model);
  line.text("model_sha256", source.model_sha256);
  line.count("seed", source.seed);
  line.text("suite", table.suite);
  line.text("query", table.query);
  line.text("label", variant.label);
  line.text("method", variant.method);
  line.text("keep", variant.keep);
  line.text("type_k", variant.type_k);
  line.text("type_v", variant.type_v);
  return line;
}

template <class AnyTable>
void add_baseline(const AnyTable& table, std::size_t v, Line& line) {
  if (table.baselines[v]) line.text("baseline", table.variants[*table.baselines[v]].name);
}

void add_scores(const Summary& summary, const ScoreTable& table, const ScoreLine& from,
                std::string& out) {
  for (std::size_t v = 0; v < table.variants.size(); ++v) {
    if (!from.cells[v]) continue;
    const ScoreCell& cell = *from.cells[v];
    Line line = begin_line(from.is_average ? "average" : "task", summary, table, v);
    line.text("task", from.task);
    if (!from.is_average || from.length > 0) line.count("length", from.length);
    line.text("metric", from.metric);
    line.count("n_tasks", from.is_average ? from.n_tasks[v] : 1);
    line.count("n_samples", cell.n_samples);
    line.count("n_answers", cell.n_answers);
    line.number("kept_share", cell.kept_share);
    line.number("kv_bytes", cell.kv_bytes);
    line.number("kv_bytes_full", cell.kv_bytes_full);
    line.number("n_entries", cell.n_entries);
    line.number("chance", from.chance);
    line.estimate("score", cell.score);
    line.number("exact", cell.exact);
    line.number("answer_tokens", cell.answer_tokens);
    line.number("ended", cell.ended);
    line.number("longer_answers", cell.longer_answers);
    line.number("truncated_samples", cell.truncated_samples);
    line.number("truncated_tokens", cell.truncated_tokens);
    add_baseline(table, v, line);
    line.comparison(cell.against);
    line.count("unpaired", cell.unpaired);
    line.add_to(out);
  }
}

void add_fidelity(const Summary& summary, const FidelityTable& table, std::string& out) {
  for (const FidelityLine& from : table.texts) {
    for (std::size_t v = 0; v < table.variants.size(); ++v) {
      if (!from.cells[v]) continue;
      const FidelityCell& cell = *from.cells[v];
      Line line = begin_line("fidelity", summary, table, v);
      line.text("task", from.task);
      line.count("length", from.length);
      line.count("n_samples", cell.n_passages);
      line.count("n_answers", cell.n_tokens);
      line.number("kept_share", cell.kept_share);
      line.number("kv_bytes", cell.kv_bytes);
      line.number("kv_bytes_full", cell.kv_bytes_full);
      line.number("n_entries", cell.n_entries);
      line.estimate("kl_mean", cell.kl);
      line.number("kl_median", cell.median_kl);
      line.number("kl_p99", cell.p99_kl);
      line.estimate("same_top", cell.same_top);
      line.estimate("log_likelihood_change", cell.log_likelihood_change);
      line.number("output_error", cell.mean_output_error);
      if (cell.kl_against) add_baseline(table, v, line);
      line.comparison(cell.kl_against);
      line.add_to(out);
    }
  }
}

void add_timing(const Summary& summary, const TimingTable& table, std::string& out) {
  for (const TimingLine& from : table.lengths) {
    for (std::size_t v = 0; v < table.variants.size(); ++v) {
      if (!from.cells[v]) continue;
      const TimingCell& cell = *from.cells[v];
      Line line = begin_line("speed", summary, table, v);
      line.count("length", from.length);
      line.number("kv_bytes", cell.kv_bytes);
      line.number("kv_bytes_full", cell.kv_bytes_full);
      if (cell.kv_bytes && *cell.kv_bytes_full > 0)
        line.number("kept_share", *cell.kv_bytes / *cell.kv_bytes_full);
      line.number("prefill_ms", cell.prefill_ms);
      line.number("compress_ms", cell.compress_ms);
      line.number("question_ms", cell.question_ms);
      line.number("decode_tokens_per_s", cell.tokens_per_s);
      line.number("peak_bytes", cell.peak_bytes);
      line.count("n_timed", cell.n_timed);
      line.add_to(out);
    }
  }
}

}  // namespace

std::string csv_text(const std::string& text) {
  std::string value = text;
  if (!value.empty() && std::string_view("=+-@\t\r").find(value.front()) != std::string_view::npos)
    value.insert(0, "'");
  if (value.find_first_of(",\"\r\n") == std::string::npos) return value;
  std::string out = "\"";
  for (const char c : value) {
    if (c == '"') out += '"';
    out += c;
  }
  return out + '"';
}

std::string print_csv(const Summary& summary) {
  std::string out;
  for (const std::string& name : columns()) out += (out.empty() ? "" : ",") + name;
  out += '\n';
  for (const ScoreTable& table : summary.scores) {
    for (const ScoreLine& line : table.averages) add_scores(summary, table, line, out);
    for (const ScoreLine& line : table.tasks) add_scores(summary, table, line, out);
  }
  for (const FidelityTable& table : summary.fidelity) add_fidelity(summary, table, out);
  for (const TimingTable& table : summary.timing) add_timing(summary, table, out);
  return out;
}

}  // namespace precis
