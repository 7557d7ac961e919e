#include "report/summary.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "base/error.h"
#include "report/run_difference.h"
#include "report/summary_parts.h"

namespace precis {
namespace detail {
namespace {

constexpr std::size_t kMostVariants = 500;

bool same_types(const Variant& a, const Variant& b) {
  return a.type_k == b.type_k && a.type_v == b.type_v;
}

bool is_f16(const Variant& v) { return v.type_k == "f16" && v.type_v == "f16"; }

// Keeps of the candidates those that `fits`, if there are any.
template <class Fits>
void prefer(std::vector<std::size_t>& candidates, Fits fits) {
  std::vector<std::size_t> fitting;
  for (const std::size_t i : candidates)
    if (fits(i)) fitting.push_back(i);
  if (!fitting.empty()) candidates = fitting;
}

}  // namespace

double ratio_of(double part, double whole) { return whole == 0 ? 0 : part / whole; }

std::size_t variant_of(std::vector<Variant>& variants, const RowKey& key) {
  for (std::size_t i = 0; i < variants.size(); ++i) {
    const Variant& v = variants[i];
    if (v.label == key.label && v.keep == key.keep && v.method == key.method &&
        v.type_k == key.type_k && v.type_v == key.type_v)
      return i;
  }
  if (variants.size() == kMostVariants)
    throw Error(ErrorCode::kInvalidArgument,
                concat("suite '", key.suite, "' has results for more than ", kMostVariants,
                       " combinations of method, keep and row types; report on fewer files"));
  variants.push_back({key.label, key.method, key.keep, key.type_k, key.type_v, {}, {}});
  return variants.size() - 1;
}

void name_variants(std::vector<Variant>& variants) {
  bool types_differ = false;
  for (const Variant& v : variants) types_differ |= !same_types(v, variants.front());
  for (Variant& v : variants) {
    const bool specs_differ = std::any_of(variants.begin(), variants.end(), [&v](const Variant& o) {
      return o.label == v.label && o.method != v.method;
    });
    v.line = v.label;
    if (specs_differ) v.line += " = " + v.method;
    if (types_differ || !is_f16(v))
      v.line += " (" + (v.type_k == v.type_v ? v.type_k : v.type_k + "/" + v.type_v) + ")";
    v.name = v.is_full() && v.keep == "100%" ? v.line : v.line + " @ " + v.keep;
  }
}

// A baseline in the same row types says what condensing does; else the one in f16, if it has one.
std::vector<std::optional<std::size_t>> find_baselines(const std::vector<Variant>& variants,
                                                       const Against& against) {
  std::vector<std::optional<std::size_t>> out(variants.size());
  std::vector<std::size_t> named;
  for (std::size_t i = 0; i < variants.size(); ++i)
    if (variants[i].label == against.label &&
        (against.keep.empty() || variants[i].keep == against.keep))
      named.push_back(i);
  for (std::size_t i = 0; i < variants.size(); ++i) {
    std::vector<std::size_t> candidates = named;
    if (std::find(named.begin(), named.end(), i) != named.end()) continue;
    prefer(candidates, [&](std::size_t c) { return same_types(variants[c], variants[i]); });
    prefer(candidates, [&](std::size_t c) { return is_f16(variants[c]); });
    prefer(candidates, [&](std::size_t c) { return variants[c].keep == variants[i].keep; });
    if (candidates.size() == 1) out[i] = candidates.front();
  }
  return out;
}

}  // namespace detail

namespace {

// Two files may hold different parts of one experiment; other seeds draw other samples.
bool is_of_source(const Source& source, const RunRow& run) {
  return source.model == run.model && source.model_sha256 == run.model_sha256 &&
         source.seed == run.seed;
}

std::size_t source_of(std::vector<Source>& sources, const RunRow& run) {
  std::size_t i = 0;
  while (i < sources.size() && !is_of_source(sources[i], run)) ++i;
  if (i == sources.size())
    sources.push_back({run.model, run.model_sha256, run.model_type, run.seed, {}, {}});
  Source& source = sources[i];
  const bool known = std::any_of(
      source.runs.begin(), source.runs.end(),
      [&run](const RunRow* other) { return !run_difference_beside_shard(*other, run); });
  if (!known) source.runs.push_back(&run);
  return i;
}

void name_sources(std::vector<Source>& sources) {
  for (Source& source : sources) {
    source.name = source.model;
    bool other_seed = false;
    bool other_file = false;
    for (const Source& other : sources) {
      if (other.model != source.model) continue;
      other_seed |= other.seed != source.seed;
      other_file |= other.model_sha256 != source.model_sha256;
    }
    if (other_file) source.name += " (" + source.model_sha256.substr(0, 8) + ")";
    if (other_seed) source.name += concat(", seed ", source.seed);
  }
}

std::string identity_of(std::size_t source, const ResultRow& row) {
  const RowKey& k = *key_of(row);
  return concat(source, '\x1f', row.index(), '\x1f', k.suite, '\x1f', k.task, '\x1f', k.length,
                '\x1f', k.index, '\x1f', k.question, '\x1f', k.query, '\x1f', k.label, '\x1f',
                k.method, '\x1f', k.keep, '\x1f', k.type_k, '\x1f', k.type_v);
}

struct Taken {
  const ResultRow* row;
  const ResultFile* file;
};

// Times are never alike: of two, the first counts.
bool is_duplicate(const Taken& first, const ResultRow& row, const ResultFile& file) {
  if (std::holds_alternative<TimingRow>(row) || print_row(*first.row) == print_row(row))
    return true;
  const RowKey& k = *key_of(row);
  throw Error(ErrorCode::kInvalidArgument,
              concat("'", first.file->path, "' and '", file.path, "' have different rows for ",
                     k.suite, " ", k.task, ", length ", k.length, ", sample ", k.index, ", ",
                     k.label, " at ", k.keep,
                     "; report on one of them, or give one of them another "
                     "label"));
}

void collect_rows(const std::vector<ResultFile>& files, Summary& to) {
  std::unordered_map<std::string, Taken> taken;
  std::size_t n_twice = 0;
  for (const ResultFile& file : files) {
    const std::size_t source = source_of(to.sources, file.run);
    for (const ResultRow& row : file.rows) {
      const auto [found, is_new] = taken.try_emplace(identity_of(source, row), Taken{&row, &file});
      if (is_new)
        to.rows.push_back({source, &row});
      else if (is_duplicate(found->second, row, file))
        ++n_twice;
    }
  }
  if (n_twice > 0)
    to.notes.push_back(concat(n_twice, " rows are in the files more than once and count once."));
}

void note_shards(const std::vector<ResultFile>& files, Summary& to) {
  struct Run {
    const RunRow* run;
    std::set<std::size_t> shards;
  };
  std::vector<Run> runs;
  for (const ResultFile& file : files) {
    if (file.run.n_shards == 1) continue;
    const auto found = std::find_if(runs.begin(), runs.end(), [&file](const Run& other) {
      return other.run->n_shards == file.run.n_shards &&
             !run_difference_beside_shard(*other.run, file.run);
    });
    if (found != runs.end())
      found->shards.insert(file.run.shard);
    else
      runs.push_back({&file.run, {file.run.shard}});
  }
  for (const Run& run : runs)
    if (run.shards.size() < run.run->n_shards)
      to.notes.push_back(concat("Only ", run.shards.size(), " of the ", run.run->n_shards,
                                " shards of suite ", run.run->suite,
                                " are there: the samples are not complete."));
}

void note_differences(Summary& to) {
  for (const Source& source : to.sources) {
    std::set<std::string> builds;
    for (const RunRow* run : source.runs) builds.insert(run->version + " (" + run->commit + ")");
    if (builds.size() < 2) continue;
    std::string list;
    for (const std::string& build : builds) list += (list.empty() ? "" : ", ") + build;
    to.notes.push_back("Results of " + source.name + " come from different builds: " + list + ".");
  }
  std::size_t unpaired = 0;
  for (const ScoreTable& table : to.scores)
    for (const ScoreLine& line : table.tasks)
      for (const auto& cell : line.cells)
        if (cell) unpaired += cell->unpaired;
  if (unpaired > 0)
    to.notes.push_back(concat(unpaired,
                              " answers have no answer of the baseline to the same prompt and take "
                              "no part in comparisons."));
}

void note_unscored(Summary& to) {
  for (const SourcedRow& sourced : to.rows) {
    const auto* row = std::get_if<ScoreRow>(sourced.row);
    if (row != nullptr && !row->is_scored()) ++to.n_unscored;
  }
  if (to.n_unscored > 0)
    to.notes.push_back(concat(to.n_unscored,
                              " answers are to questions without a known answer: they have no "
                              "score and count in no average."));
}

// The label may hold '@' itself: the last one separates.
detail::Against parse_against(const std::string& text) {
  const std::size_t at = text.rfind('@');
  if (at == std::string::npos) return {text, {}};
  return {text.substr(0, at), text.substr(at + 1)};
}

void check_against(const detail::Against& against, const std::string& text, const Summary& in) {
  std::set<std::string> names;
  for (const SourcedRow& row : in.rows) {
    const RowKey& key = *key_of(*row.row);
    if (key.label == against.label && (against.keep.empty() || key.keep == against.keep)) return;
    if (names.size() < 20) names.insert(key.label + "@" + key.keep);
  }
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  throw Error(ErrorCode::kInvalidArgument,
              concat("no row is of the baseline '", text, "'; there are: ", list));
}

}  // namespace

Summary summarise(const std::vector<ResultFile>& files, const SummaryOptions& options) {
  Summary out;
  collect_rows(files, out);
  name_sources(out.sources);
  note_shards(files, out);
  out.against = options.against.empty() ? "full" : options.against;
  const detail::Against against = parse_against(out.against);
  if (!options.against.empty()) check_against(against, options.against, out);
  out.scores = detail::score_tables(out.rows, against, options.bootstrap);
  out.fidelity = detail::fidelity_tables(out.rows, against, options.bootstrap);
  out.timing = detail::timing_tables(out.rows);
  note_differences(out);
  note_unscored(out);
  return out;
}

}  // namespace precis
