// Fidelity to the full cache, time and memory.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "report/summary_parts.h"

namespace precis::detail {
namespace {

using Passages = std::vector<const FidelityRow*>;

// Every token of a passage counts alike, passages are resampled whole.
std::vector<Unit> units_of(const Passages& passages, double FidelityRow::*field) {
  std::vector<Unit> out;
  for (const FidelityRow* row : passages) {
    const std::size_t n = std::max<std::size_t>(1, row->n_continuation);
    out.push_back({row->*field * static_cast<double>(n), n});
  }
  return out;
}

Estimate estimate(const Passages& passages, double FidelityRow::*field, const Bootstrap& bootstrap,
                  const std::string& stream) {
  return mean_of(resample(units_of(passages, field), bootstrap, stream), bootstrap);
}

double plain_mean(const Passages& passages, double (*value)(const FidelityRow&)) {
  double sum = 0;
  for (const FidelityRow* row : passages) sum += value(*row);
  return sum / static_cast<double>(passages.size());
}

void add_output_error(const Passages& passages, FidelityCell& cell) {
  const auto& first = passages.front()->output_error;
  cell.output_error = first;
  for (auto& layer : cell.output_error) std::fill(layer.begin(), layer.end(), 0.0);
  double sum = 0;
  std::size_t n = 0;
  for (const FidelityRow* row : passages) {
    const auto& error = row->output_error;
    bool same_shape = error.size() == first.size();
    for (std::size_t l = 0; same_shape && l < error.size(); ++l)
      same_shape = error[l].size() == first[l].size();
    if (!same_shape) cell.output_error.clear();
    for (std::size_t l = 0; l < error.size(); ++l) {
      for (std::size_t h = 0; h < error[l].size(); ++h) {
        sum += error[l][h];
        ++n;
        if (!cell.output_error.empty())
          cell.output_error[l][h] += error[l][h] / static_cast<double>(passages.size());
      }
    }
  }
  cell.mean_output_error = n == 0 ? 0 : sum / static_cast<double>(n);
}

FidelityCell fidelity_cell(const Passages& passages, const Bootstrap& bootstrap,
                           const std::string& stream) {
  FidelityCell cell;
  cell.n_passages = passages.size();
  for (const FidelityRow* row : passages) cell.n_tokens += row->n_continuation;
  cell.kl = estimate(passages, &FidelityRow::mean_kl, bootstrap, stream);
  cell.same_top = estimate(passages, &FidelityRow::same_top, bootstrap, stream);
  cell.log_likelihood_change = mean_of(
      difference_of(
          resample(units_of(passages, &FidelityRow::log_likelihood), bootstrap, stream),
          resample(units_of(passages, &FidelityRow::log_likelihood_full), bootstrap, stream)),
      bootstrap);
  cell.median_kl = plain_mean(passages, [](const FidelityRow& r) { return r.median_kl; });
  cell.p99_kl = plain_mean(passages, [](const FidelityRow& r) { return r.p99_kl; });
  cell.kv_bytes =
      plain_mean(passages, [](const FidelityRow& r) { return static_cast<double>(r.kv_bytes); });
  cell.kv_bytes_full = plain_mean(
      passages, [](const FidelityRow& r) { return static_cast<double>(r.kv_bytes_full); });
  cell.n_entries =
      plain_mean(passages, [](const FidelityRow& r) { return static_cast<double>(r.n_entries); });
  cell.kept_share = plain_mean(passages, [](const FidelityRow& r) {
    return ratio_of(static_cast<double>(r.kv_bytes), static_cast<double>(r.kv_bytes_full));
  });
  add_output_error(passages, cell);
  return cell;
}

std::optional<Comparison> compare_kl(const Passages& own, const Passages& others,
                                     const Bootstrap& bootstrap, const std::string& stream) {
  Passages a;
  Passages b;
  for (const FidelityRow* row : own) {
    for (const FidelityRow* other : others) {
      if (other->key.index != row->key.index || other->n_continuation != row->n_continuation)
        continue;
      a.push_back(row);
      b.push_back(other);
      break;
    }
  }
  if (a.empty()) return {};
  return compare_paired(units_of(a, &FidelityRow::mean_kl), units_of(b, &FidelityRow::mean_kl),
                        bootstrap, stream);
}

FidelityTable fidelity_table(TableRows<FidelityRow>& rows, const Against& against,
                             const Bootstrap& bootstrap) {
  FidelityTable out{rows.source, rows.suite, rows.query, std::move(rows.variants), {}, {}};
  out.baselines = find_baselines(out.variants, against);
  std::map<std::pair<std::string, std::size_t>, std::size_t> places;
  std::vector<std::vector<Passages>> passages;  // [text][variant]
  for (const auto& [variant, row] : rows.rows) {
    const auto [found, is_new] =
        places.try_emplace({row->key.task, row->key.length}, out.texts.size());
    if (is_new) {
      out.texts.push_back({row->key.task, row->key.length, {}});
      passages.emplace_back(out.variants.size());
    }
    passages[found->second][variant].push_back(row);
  }
  for (std::size_t t = 0; t < out.texts.size(); ++t) {
    FidelityLine& line = out.texts[t];
    const std::string stream = concat(line.task, '\x1f', line.length);
    for (std::size_t v = 0; v < out.variants.size(); ++v) {
      Passages& own = passages[t][v];
      std::sort(own.begin(), own.end(), [](const FidelityRow* a, const FidelityRow* b) {
        return a->key.index < b->key.index;
      });
      line.cells.emplace_back();
      if (own.empty()) continue;
      line.cells.back() = fidelity_cell(own, bootstrap, stream);
      const auto& baseline = out.baselines[v];
      if (baseline && !out.variants[*baseline].is_full())
        line.cells.back()->kl_against = compare_kl(own, passages[t][*baseline], bootstrap, stream);
    }
  }
  return out;
}

// What is measured of a variant at a length.
struct Measured {
  std::vector<double> prefill;
  std::vector<double> compress;
  std::vector<double> question;
  std::vector<double> speed;
  double peak = 0;
  std::size_t n_timed = 0;
  std::set<std::pair<std::string, std::size_t>> samples;
  double kv_bytes = 0;
  double kv_bytes_full = 0;
  std::size_t n_bytes = 0;

  void add(const TimingRow& row) {
    ++n_timed;
    // Prefill and condensing are shared by the questions of a sample.
    if (samples.emplace(row.key.task, row.key.index).second) {
      prefill.push_back(row.prefill_ms);
      compress.push_back(row.compress_ms);
    }
    question.push_back(row.question_ms);
    if (row.n_decoded > 0 && row.decode_ms > 0)
      speed.push_back(1e3 * static_cast<double>(row.n_decoded) / row.decode_ms);
    peak = std::max(peak, static_cast<double>(row.peak_bytes));
  }
  template <class Row>
  void add_bytes(const Row& row) {
    ++n_bytes;
    kv_bytes += static_cast<double>(row.kv_bytes);
    kv_bytes_full += static_cast<double>(row.kv_bytes_full);
  }
  TimingCell cell() const {
    const auto median = [](const std::vector<double>& values) {
      return values.empty() ? std::optional<double>() : quantile_of(values, 0.5);
    };
    TimingCell out;
    out.n_timed = n_timed;
    out.prefill_ms = median(prefill);
    out.compress_ms = median(compress);
    out.question_ms = median(question);
    out.tokens_per_s = median(speed);
    if (peak > 0) out.peak_bytes = peak;
    if (n_bytes > 0) {
      out.kv_bytes = kv_bytes / static_cast<double>(n_bytes);
      out.kv_bytes_full = kv_bytes_full / static_cast<double>(n_bytes);
    }
    return out;
  }
};

struct MeasuredTable {
  std::map<std::size_t, std::map<std::size_t, Measured>> lengths;  // [length][variant]
  TimingTable table;
};

void measure(const ResultRow& row, Measured& to) {
  if (const auto* timing = std::get_if<TimingRow>(&row)) to.add(*timing);
  if (const auto* score = std::get_if<ScoreRow>(&row)) to.add_bytes(*score);
  if (const auto* fidelity = std::get_if<FidelityRow>(&row)) to.add_bytes(*fidelity);
}

}  // namespace

std::vector<FidelityTable> fidelity_tables(const std::vector<SourcedRow>& rows,
                                           const Against& against, const Bootstrap& bootstrap) {
  std::vector<FidelityTable> out;
  for (TableRows<FidelityRow>& table : split_rows<FidelityRow>(rows))
    out.push_back(fidelity_table(table, against, bootstrap));
  return out;
}

std::vector<TimingTable> timing_tables(const std::vector<SourcedRow>& rows) {
  std::vector<MeasuredTable> measured;
  std::map<std::string, std::size_t> places;
  for (const SourcedRow& sourced : rows) {
    if (std::holds_alternative<KeptRow>(*sourced.row)) continue;
    const RowKey& key = *key_of(*sourced.row);
    const auto [found, is_new] = places.try_emplace(
        concat(sourced.source, '\x1f', key.suite, '\x1f', key.query), measured.size());
    if (is_new) measured.push_back({{}, {sourced.source, key.suite, key.query, {}, {}}});
    MeasuredTable& table = measured[found->second];
    const std::size_t variant = variant_of(table.table.variants, key);
    measure(*sourced.row, table.lengths[key.length][variant]);
  }
  std::vector<TimingTable> out;
  for (MeasuredTable& from : measured) {
    TimingTable& table = from.table;
    name_variants(table.variants);
    for (const auto& [length, variants] : from.lengths) {
      table.lengths.push_back({length, {}});
      for (std::size_t v = 0; v < table.variants.size(); ++v) {
        const auto found = variants.find(v);
        table.lengths.back().cells.push_back(found == variants.end() ? std::optional<TimingCell>()
                                                                     : found->second.cell());
      }
    }
    out.push_back(std::move(table));
  }
  return out;
}

}  // namespace precis::detail
