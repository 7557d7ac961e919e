#include "report/report_tables.h"

#include <algorithm>

#include "base/error.h"
#include "report/number_text.h"

namespace precis {
namespace {

constexpr double kScale = 100;  // scores are shown from 0 to 100

TableCell text_cell(std::string text) { return {std::move(text), {}, CellMark::kNone}; }

TableCell number_cell(double value, std::string text) {
  return {std::move(text), value, CellMark::kNone};
}

TableCell count_cell(std::size_t n) {
  return number_cell(static_cast<double>(n), std::to_string(n));
}

TableCell fixed_cell(double value, int digits) {
  return number_cell(value, fixed_text(value, digits));
}

TableCell optional_cell(const std::optional<double>& value, int digits) {
  return value ? fixed_cell(*value, digits) : text_cell("");
}

TableCell bytes_cell(const std::optional<double>& value) {
  return value ? number_cell(*value, bytes_text(*value)) : text_cell("");
}

TableCell estimate_cell(const Estimate& estimate, double scale, int digits) {
  return number_cell(scale * estimate.value, estimate_text(estimate, scale, digits));
}

CellMark mark_of(const Comparison& c) {
  if (!c.distinguishable) return CellMark::kNone;
  return c.difference.value > 0 ? CellMark::kBetter : CellMark::kWorse;
}

struct ComparisonCells {
  TableCell difference, counts, verdict;
};

ComparisonCells compare_cells(const std::optional<Comparison>& c, const std::string& baseline,
                              double scale, int digits, bool smaller_is_better = false) {
  if (!c)
    return {text_cell(""), text_cell(""), text_cell(baseline.empty() ? "" : "not comparable")};
  return {number_cell(scale * c->difference.value, difference_text(c->difference, scale, digits)),
          number_cell(static_cast<double>(c->wins) - static_cast<double>(c->losses),
                      concat(c->wins, " / ", c->ties, " / ", c->losses)),
          text_cell(verdict_text(*c, baseline, smaller_is_better))};
}

std::string baseline_name(const std::vector<Variant>& variants,
                          const std::vector<std::optional<std::size_t>>& baselines, std::size_t v) {
  return baselines[v] ? variants[*baselines[v]].name : std::string();
}

const std::vector<TableColumn>& score_columns() {
  static const std::vector<TableColumn> columns = {
      {"kept", true, "Bytes of the condensed cache, of those of the full one."},
      {"score", true, "Mean from 0 to 100, with its 95 % interval."},
      {"exact", true, "Percent of answers that are the reference and nothing else."},
      {"difference", true, "Mean difference to the baseline on the same samples, 95 % interval."},
      {"won / same / lost", true, "Samples that score higher, equal or lower than the baseline's."},
      {"against the baseline", false, "What the interval of the difference says."},
      {"answer tokens", true, "Mean length of the answers."},
      {"longer", true, "Percent of answers at least 1.5 times as long as the baseline's."},
  };
  return columns;
}

std::vector<TableCell> score_cells(const ScoreCell& cell, const std::string& baseline) {
  const ComparisonCells compared = compare_cells(cell.against, baseline, kScale, 1);
  return {number_cell(cell.kept_share, percent_text(cell.kept_share)),
          estimate_cell(cell.score, kScale, 1),
          fixed_cell(kScale * cell.exact, 1),
          compared.difference,
          compared.counts,
          compared.verdict,
          fixed_cell(cell.answer_tokens, 1),
          cell.longer_answers ? fixed_cell(100 * *cell.longer_answers, 1) : text_cell("")};
}

void append(std::vector<TableCell>& row, std::vector<TableCell> cells) {
  for (TableCell& cell : cells) row.push_back(std::move(cell));
}

Table average_table(const ScoreTable& table, const ScoreLine& line) {
  Table out;
  out.caption = setting_text(table.suite, table.query) + ": average over tasks" +
                (line.length > 0 ? concat(", ", line.length, " tokens") : "");
  out.columns = {{"method", false, ""}};
  const auto& columns = score_columns();
  out.columns.insert(out.columns.end(), columns.begin(), columns.end());
  out.columns.push_back({"samples", true, "Samples; the questions of one count together."});
  out.columns.push_back({"tasks", true, "Tasks, at each length, that there are results for."});
  for (std::size_t v = 0; v < table.variants.size(); ++v) {
    if (!line.cells[v]) continue;
    std::vector<TableCell> row = {text_cell(table.variants[v].name)};
    append(row, score_cells(*line.cells[v], baseline_name(table.variants, table.baselines, v)));
    row.push_back(count_cell(line.cells[v]->n_samples));
    row.push_back(number_cell(static_cast<double>(line.n_tasks[v]),
                              concat(line.n_tasks[v], " of ", line.n_tasks_of_all)));
    out.rows.push_back(std::move(row));
  }
  if (line.chance)
    out.notes.push_back("Guessing would score " + fixed_text(kScale * *line.chance, 1) + ".");
  const bool partial =
      std::any_of(line.n_tasks.begin(), line.n_tasks.end(),
                  [&line](std::size_t n) { return n > 0 && n < line.n_tasks_of_all; });
  if (partial)
    out.notes.push_back(
        "Averages over fewer tasks than others are not comparable with those; differences are over "
        "the tasks that both have.");
  return out;
}

TableCell matrix_cell(const std::optional<ScoreCell>& cell) {
  if (!cell) return text_cell("");
  TableCell out = fixed_cell(kScale * cell->score.value, 1);
  if (cell->against) out.mark = mark_of(*cell->against);
  return out;
}

std::vector<TableCell> matrix_row(const ScoreLine& line) {
  std::vector<TableCell> row = {text_cell(task_text(line.task, line.length))};
  row.push_back(text_cell(line.metric));
  row.push_back(optional_cell(line.chance ? kScale * *line.chance : std::optional<double>(), 1));
  for (const auto& cell : line.cells) row.push_back(matrix_cell(cell));
  return row;
}

void print_run(const Source& source, std::string& out) {
  out += "Model " + markdown_text(shorten(source.model, 200)) + " (" +
         markdown_text(shorten(source.model_type, 100)) + ", sha256 " +
         markdown_text(shorten(source.model_sha256, 64)) + concat("), seed ", source.seed);
  for (const RunRow* run : source.runs)
    out += "; suite " + markdown_text(shorten(run->suite, 60)) + ", Precis " +
           markdown_text(shorten(run->version, 30)) + " at " +
           markdown_text(shorten(run->commit, 60));
  out += ".\n\n";
}

}  // namespace

std::string verdict_text(const Comparison& comparison, const std::string& baseline,
                         bool smaller_is_better) {
  const auto& interval = comparison.difference.interval;
  if (comparison.distinguishable)
    return ((comparison.difference.value > 0) != smaller_is_better ? "better than "
                                                                   : "worse than ") +
           baseline;
  std::string out = "not distinguishable from " + baseline;
  const std::size_t n_differ = comparison.wins + comparison.losses;
  if (n_differ == 0) return out + " (no sample differs)";
  const bool holds_zero = interval && interval->low <= 0 && interval->high >= 0;
  if (!holds_zero && n_differ < kFewestDiffering)
    out += concat(" (only ", n_differ, n_differ == 1 ? " sample differs)" : " samples differ)");
  return out;
}

std::string query_text(const std::string& query) {
  if (query == "agnostic") return "question unknown while condensing";
  if (query == "aware") return "question known while condensing";
  return query;
}

std::string setting_text(const std::string& suite, const std::string& query) {
  // A continuation has no question.
  return query.empty() || suite == "fidelity" ? suite : suite + ", " + query_text(query);
}

std::string task_text(const std::string& task, std::size_t length) {
  return length == 0 ? task : concat(task, ", ", length, " tokens");
}

std::vector<Table> average_tables(const ScoreTable& table) {
  std::vector<Table> out;
  for (const ScoreLine& line : table.averages) out.push_back(average_table(table, line));
  return out;
}

Table task_table(const ScoreTable& table) {
  Table out;
  out.caption = setting_text(table.suite, table.query) + ": score of each task";
  out.columns = {
      {"task", false, ""}, {"metric", false, ""}, {"chance", true, "Score of guessing."}};
  for (std::size_t v = 0; v < table.variants.size(); ++v) {
    const std::string baseline = baseline_name(table.variants, table.baselines, v);
    out.columns.push_back(
        {table.variants[v].name, true,
         baseline.empty() ? "" : "Marked where it differs from " + baseline + "."});
  }
  for (const ScoreLine& line : table.averages) out.rows.push_back(matrix_row(line));
  for (const ScoreLine& line : table.tasks) out.rows.push_back(matrix_row(line));
  return out;
}

Table detail_table(const ScoreTable& table) {
  Table out;
  out.caption = setting_text(table.suite, table.query) + ": every task and method";
  out.columns = {{"task", false, ""}, {"method", false, ""}};
  const auto& columns = score_columns();
  out.columns.insert(out.columns.end(), columns.begin(), columns.end());
  out.columns.push_back({"ended", true, "Percent of answers that the model ended itself."});
  out.columns.push_back(
      {"cut", true, "Percent of samples whose document was too long, and mean tokens cut."});
  out.columns.push_back({"entries", true, "Mean entries over layers and KV heads."});
  out.columns.push_back({"samples", true, ""});
  out.columns.push_back({"answers", true, ""});
  for (const ScoreLine& line : table.tasks) {
    for (std::size_t v = 0; v < table.variants.size(); ++v) {
      if (!line.cells[v]) continue;
      const ScoreCell& cell = *line.cells[v];
      std::vector<TableCell> row = {text_cell(task_text(line.task, line.length)),
                                    text_cell(table.variants[v].name)};
      append(row, score_cells(cell, baseline_name(table.variants, table.baselines, v)));
      append(row, {fixed_cell(100 * cell.ended, 1),
                   number_cell(cell.truncated_tokens,
                               cell.truncated_samples == 0
                                   ? "0"
                                   : fixed_text(100 * cell.truncated_samples, 1) + " %, " +
                                         fixed_text(cell.truncated_tokens, 0) + " tokens"),
                   fixed_cell(cell.n_entries, 0), count_cell(cell.n_samples),
                   count_cell(cell.n_answers)});
      out.rows.push_back(std::move(row));
    }
  }
  return out;
}

Table fidelity_table(const FidelityTable& table) {
  Table out;
  out.caption = table.suite == "fidelity"
                    ? "Fidelity to the full cache"
                    : setting_text(table.suite, table.query) + ": fidelity to the full cache";
  out.columns = {
      {"text", false, ""},
      {"method", false, ""},
      {"kept", true, "Bytes of the condensed cache, of those of the full one."},
      {"KL mean", true,
       "Divergence of the next token's distribution from the full cache's, nats a token."},
      {"KL median", true, "Mean over passages of their medians."},
      {"KL p99", true, "Mean over passages of their 99th percentiles."},
      {"same top", true, "Percent of tokens where both caches prefer the same one."},
      {"log-likelihood", true, "Change of the true tokens' mean, nats a token; below 0 is worse."},
      {"output error", true, "Relative error of attention's output, mean over layers and heads."},
  };
  const bool compared =
      std::any_of(table.texts.begin(), table.texts.end(), [](const FidelityLine& line) {
        return std::any_of(line.cells.begin(), line.cells.end(),
                           [](const auto& cell) { return cell && cell->kl_against; });
      });
  if (compared) {
    out.columns.push_back({"KL difference", true, "To the baseline, 95 % interval."});
    out.columns.push_back({"against the baseline", false, ""});
  }
  out.columns.push_back({"passages", true, ""});
  out.columns.push_back({"tokens", true, ""});
  for (const FidelityLine& line : table.texts) {
    for (std::size_t v = 0; v < table.variants.size(); ++v) {
      if (!line.cells[v]) continue;
      const FidelityCell& cell = *line.cells[v];
      std::vector<TableCell> row = {text_cell(task_text(line.task, line.length)),
                                    text_cell(table.variants[v].name)};
      append(row, {number_cell(cell.kept_share, percent_text(cell.kept_share)),
                   estimate_cell(cell.kl, 1, 4), fixed_cell(cell.median_kl, 4),
                   fixed_cell(cell.p99_kl, 3), estimate_cell(cell.same_top, 100, 1),
                   number_cell(cell.log_likelihood_change.value,
                               difference_text(cell.log_likelihood_change, 1, 4)),
                   fixed_cell(cell.mean_output_error, 4)});
      if (compared) {
        const ComparisonCells cells = compare_cells(
            cell.kl_against, baseline_name(table.variants, table.baselines, v), 1, 4, true);
        append(row, {cells.difference, cells.verdict});
      }
      append(row, {count_cell(cell.n_passages), count_cell(cell.n_tokens)});
      out.rows.push_back(std::move(row));
    }
  }
  return out;
}

Table timing_table(const TimingTable& table) {
  Table out;
  out.caption = setting_text(table.suite, table.query) + ": speed and memory";
  out.columns = {
      {"method", false, ""},
      {"length", true, "Tokens of the context that were asked for."},
      {"KV cache", true, "Mean live bytes after condensing."},
      {"kept", true, "Of the bytes of the full cache."},
      {"prefill, ms", true, "Median over samples; shared by all methods of a sample."},
      {"condense, ms", true, "Median over samples."},
      {"question, ms", true, "Median over answers."},
      {"decode, tokens/s", true, "Median over answers."},
      {"peak memory", true, "Highest resident memory of the process so far: it never falls."},
      {"timed", true, "Answers with times."},
  };
  for (const TimingLine& line : table.lengths) {
    for (std::size_t v = 0; v < table.variants.size(); ++v) {
      if (!line.cells[v]) continue;
      const TimingCell& cell = *line.cells[v];
      std::vector<TableCell> row = {text_cell(table.variants[v].name)};
      append(row, {line.length == 0 ? number_cell(0, "as it is") : count_cell(line.length),
                   bytes_cell(cell.kv_bytes),
                   cell.kv_bytes && *cell.kv_bytes_full > 0
                       ? number_cell(*cell.kv_bytes / *cell.kv_bytes_full,
                                     percent_text(*cell.kv_bytes / *cell.kv_bytes_full))
                       : text_cell(""),
                   optional_cell(cell.prefill_ms, 1), optional_cell(cell.compress_ms, 1),
                   optional_cell(cell.question_ms, 1), optional_cell(cell.tokens_per_s, 1),
                   bytes_cell(cell.peak_bytes), count_cell(cell.n_timed)});
      out.rows.push_back(std::move(row));
    }
  }
  return out;
}

std::string print_markdown(const Summary& summary, const std::string& title) {
  std::string out = "# " + markdown_text(title) + "\n\n";
  for (const Source& source : summary.sources) print_run(source, out);
  for (const std::string& note : summary.notes) out += "Note: " + markdown_text(note) + "\n\n";
  for (std::size_t s = 0; s < summary.sources.size(); ++s) {
    if (summary.sources.size() > 1)
      out += "## " + markdown_text(shorten(summary.sources[s].name, 200)) + "\n\n";
    for (const ScoreTable& table : summary.scores) {
      if (table.source != s) continue;
      for (const Table& average : average_tables(table)) out += print_markdown(average);
      out += print_markdown(task_table(table));
    }
    for (const FidelityTable& table : summary.fidelity)
      if (table.source == s) out += print_markdown(fidelity_table(table));
    for (const TimingTable& table : summary.timing)
      if (table.source == s) out += print_markdown(timing_table(table));
  }
  return out;
}

}  // namespace precis
