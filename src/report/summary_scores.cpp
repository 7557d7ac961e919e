#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "report/summary_parts.h"

namespace precis::detail {
namespace {

constexpr double kMuchLonger = 1.5;

// The answers of one variant to one task, in the order of sample and question.
using Answers = std::vector<const ScoreRow*>;

struct TaskRows {
  std::string task;
  std::size_t length = 0;
  std::string metric;
  std::vector<Answers> answers;  // of each variant
};

std::pair<std::size_t, std::size_t> place_of(const ScoreRow* row) {
  return {row->key.index, row->key.question};
}

std::vector<TaskRows> split_tasks(const TableRows<ScoreRow>& table) {
  std::vector<TaskRows> out;
  std::map<std::tuple<std::string, std::size_t, std::string>, std::size_t> places;
  for (const auto& [variant, row] : table.rows) {
    const auto [found, is_new] =
        places.try_emplace({row->key.task, row->key.length, row->metric}, out.size());
    if (is_new)
      out.push_back({row->key.task, row->key.length, row->metric,
                     std::vector<Answers>(table.variants.size())});
    out[found->second].answers[variant].push_back(row);
  }
  for (TaskRows& task : out)
    for (Answers& answers : task.answers)
      std::sort(answers.begin(), answers.end(),
                [](const ScoreRow* a, const ScoreRow* b) { return place_of(a) < place_of(b); });
  return out;
}

std::vector<Unit> units_of(const Answers& answers) {
  std::vector<Unit> out;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    if (i == 0 || answers[i]->key.index != answers[i - 1]->key.index) out.push_back({0, 0});
    out.back().sum += answers[i]->score;
    ++out.back().count;
  }
  return out;
}

bool same_prompt(const ScoreRow& a, const ScoreRow& b) {
  return a.prompt_sha256.empty() || b.prompt_sha256.empty() || a.prompt_sha256 == b.prompt_sha256;
}

// Answers to the same prompts; both lists come back equally long.
std::pair<Answers, Answers> pair_up(const Answers& a, const Answers& b) {
  std::pair<Answers, Answers> out;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (place_of(a[i]) == place_of(b[j]) && same_prompt(*a[i], *b[j])) {
      out.first.push_back(a[i]);
      out.second.push_back(b[j]);
    }
    if (place_of(a[i]) <= place_of(b[j])) {
      const bool both = place_of(a[i]) == place_of(b[j]);
      ++i;
      if (both) ++j;
    } else {
      ++j;
    }
  }
  return out;
}

void add_means(const Answers& answers, ScoreCell& cell) {
  std::size_t last = 0;
  for (const ScoreRow* row : answers) {
    cell.exact += row->exact ? 1 : 0;
    cell.ended += row->ended ? 1 : 0;
    cell.answer_tokens += static_cast<double>(row->n_answer);
    cell.kv_bytes += static_cast<double>(row->kv_bytes);
    cell.kv_bytes_full += static_cast<double>(row->kv_bytes_full);
    cell.n_entries += static_cast<double>(row->n_entries);
    cell.kept_share +=
        ratio_of(static_cast<double>(row->kv_bytes), static_cast<double>(row->kv_bytes_full));
    if (cell.n_samples == 0 || row->key.index != last) {
      ++cell.n_samples;
      cell.truncated_samples += row->n_truncated > 0 ? 1 : 0;
      cell.truncated_tokens += static_cast<double>(row->n_truncated);
    }
    last = row->key.index;
  }
  cell.n_answers = answers.size();
  const auto n = static_cast<double>(answers.size());
  for (double* mean : {&cell.exact, &cell.ended, &cell.answer_tokens, &cell.kv_bytes,
                       &cell.kv_bytes_full, &cell.n_entries, &cell.kept_share})
    *mean /= n;
  cell.truncated_samples /= static_cast<double>(cell.n_samples);
  cell.truncated_tokens /= static_cast<double>(cell.n_samples);
}

double share_longer(const Answers& a, const Answers& b) {
  double n = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    n += static_cast<double>(a[i]->n_answer) >= kMuchLonger * static_cast<double>(b[i]->n_answer) &&
                 a[i]->n_answer > 0
             ? 1
             : 0;
  return n / static_cast<double>(a.size());
}

// The mean over tasks of a figure of their cells; for averages.
void add_averaged(const ScoreCell& from, ScoreCell& to) {
  to.n_samples += from.n_samples;
  to.n_answers += from.n_answers;
  to.unpaired += from.unpaired;
  to.exact += from.exact;
  to.ended += from.ended;
  to.answer_tokens += from.answer_tokens;
  to.kv_bytes += from.kv_bytes;
  to.kv_bytes_full += from.kv_bytes_full;
  to.n_entries += from.n_entries;
  to.kept_share += from.kept_share;
  to.truncated_samples += from.truncated_samples;
  to.truncated_tokens += from.truncated_tokens;
}

// An average while tasks are added to it.
struct AverageSums {
  MacroAverage scores;
  MacroAverage differences;
  ScoreCell cell;
  double longer = 0;
};

struct AverageLine {
  std::optional<std::size_t> length;  // nothing: all
  std::size_t n_tasks = 0;
  double chance = 0;
  bool chance_known = true;
  std::string metric;
  std::vector<AverageSums> sums;  // of each variant
};

class TableBuilder {
 public:
  TableBuilder(TableRows<ScoreRow> rows, const Against& against, const Bootstrap& bootstrap)
      : bootstrap_(bootstrap), tasks_(split_tasks(rows)) {
    table_.source = rows.source;
    table_.suite = std::move(rows.suite);
    table_.query = std::move(rows.query);
    table_.variants = std::move(rows.variants);
    table_.baselines = find_baselines(table_.variants, against);
  }

  ScoreTable build() {
    std::vector<std::size_t> lengths;
    for (const TaskRows& task : tasks_)
      if (std::find(lengths.begin(), lengths.end(), task.length) == lengths.end())
        lengths.push_back(task.length);
    add_average({});
    if (lengths.size() > 1)
      for (const std::size_t length : lengths) add_average(length);
    for (const TaskRows& task : tasks_) add_task(task);
    for (AverageLine& average : averages_) finish(average);
    return std::move(table_);
  }

 private:
  void add_average(std::optional<std::size_t> length) {
    averages_.push_back({length, 0, 0, true, {}, {}});
    averages_.back().sums.resize(table_.variants.size());
  }

  void add_task(const TaskRows& task) {
    ScoreLine line;
    line.task = task.task;
    line.length = task.length;
    line.metric = task.metric;
    line.chance = chance_of(task);
    // Independent samples, independent draws: each task and length has its own stream.
    const std::string stream = concat(task.task, '\x1f', task.length);
    std::vector<Resampled> resampled;
    for (const Answers& answers : task.answers)
      resampled.push_back(resample(units_of(answers), bootstrap_, stream));
    std::vector<AverageLine*> averages;
    for (AverageLine& average : averages_)
      if (!average.length || *average.length == task.length) averages.push_back(&average);
    for (AverageLine* average : averages) count_task(line, *average);
    for (std::size_t v = 0; v < task.answers.size(); ++v) {
      line.cells.emplace_back();
      if (task.answers[v].empty()) continue;
      ScoreCell cell;
      add_means(task.answers[v], cell);
      cell.score = score_of(resampled[v], bootstrap_);
      const std::optional<Resampled> difference = compare(task, v, resampled, stream, cell);
      for (AverageLine* average : averages) {
        AverageSums& sums = average->sums[v];
        sums.scores.add(resampled[v]);
        if (difference) sums.differences.add(*difference);
        add_averaged(cell, sums.cell);
        sums.longer += cell.longer_answers.value_or(0);
      }
      line.cells.back() = std::move(cell);
    }
    table_.tasks.push_back(std::move(line));
  }

  static std::optional<double> chance_of(const TaskRows& task) {
    double sum = 0;
    std::size_t n = 0;
    for (const Answers& answers : task.answers) {
      for (const ScoreRow* row : answers) {
        if (!row->chance) return {};
        sum += *row->chance;
        ++n;
      }
    }
    return sum / static_cast<double>(n);
  }

  static void count_task(const ScoreLine& line, AverageLine& average) {
    if (average.n_tasks > 0 && average.metric != line.metric) average.metric = "several";
    if (average.n_tasks == 0) average.metric = line.metric;
    ++average.n_tasks;
    average.chance += line.chance.value_or(0);
    average.chance_known &= line.chance.has_value();
  }

  // Fills the comparison of a cell with its baseline, and gives the difference back for averages.
  std::optional<Resampled> compare(const TaskRows& task, std::size_t v,
                                   const std::vector<Resampled>& resampled,
                                   const std::string& stream, ScoreCell& cell) const {
    const auto& baseline = table_.baselines[v];
    if (!baseline) return {};
    const Answers& own = task.answers[v];
    const Answers& others = task.answers[*baseline];
    const auto [a, b] = pair_up(own, others);
    cell.unpaired = own.size() - a.size();
    if (a.empty()) return {};
    cell.longer_answers = share_longer(a, b);
    const bool whole = a.size() == own.size() && b.size() == others.size();
    Resampled difference = whole ? difference_of(resampled[v], resampled[*baseline])
                                 : difference_of(resample(units_of(a), bootstrap_, stream),
                                                 resample(units_of(b), bootstrap_, stream));
    cell.against = judge(difference, bootstrap_);
    return difference;
  }

  void finish(AverageLine& average) {
    ScoreLine line;
    line.task = "all tasks";
    line.length = average.length.value_or(0);
    line.is_average = true;
    line.metric = average.metric;
    line.n_tasks_of_all = average.n_tasks;
    if (average.chance_known) line.chance = average.chance / static_cast<double>(average.n_tasks);
    for (AverageSums& sums : average.sums) {
      line.n_tasks.push_back(sums.scores.n_tasks());
      line.cells.emplace_back();
      if (sums.scores.n_tasks() == 0) continue;
      ScoreCell& cell = sums.cell;
      const auto n = static_cast<double>(sums.scores.n_tasks());
      for (double* mean :
           {&cell.exact, &cell.ended, &cell.answer_tokens, &cell.kv_bytes, &cell.kv_bytes_full,
            &cell.n_entries, &cell.kept_share, &cell.truncated_samples, &cell.truncated_tokens})
        *mean /= n;
      cell.score = sums.scores.score(bootstrap_);
      if (sums.differences.n_tasks() > 0) {
        cell.against = sums.differences.judge(bootstrap_);
        cell.longer_answers = sums.longer / static_cast<double>(sums.differences.n_tasks());
      }
      line.cells.back() = std::move(cell);
    }
    table_.averages.push_back(std::move(line));
  }

  const Bootstrap& bootstrap_;
  std::vector<TaskRows> tasks_;
  std::vector<AverageLine> averages_;
  ScoreTable table_;
};

}  // namespace

std::vector<ScoreTable> score_tables(const std::vector<SourcedRow>& rows, const Against& against,
                                     const Bootstrap& bootstrap) {
  // What nobody can judge is no zero.
  std::vector<SourcedRow> scored;
  for (const SourcedRow& sourced : rows) {
    const auto* row = std::get_if<ScoreRow>(sourced.row);
    if (row != nullptr && row->is_scored()) scored.push_back(sourced);
  }
  std::vector<ScoreTable> out;
  for (TableRows<ScoreRow>& table : split_rows<ScoreRow>(scored))
    out.push_back(TableBuilder(std::move(table), against, bootstrap).build());
  return out;
}

}  // namespace precis::detail
