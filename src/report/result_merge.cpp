#include "report/result_merge.h"

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "report/run_difference.h"

namespace precis {
namespace {

constexpr std::size_t kMostShards = 100000;

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorCode::kFormat, what); }

// A unit separator cannot be mistaken for a part of a name followed by another name.
std::string sample_of(const RowKey& key) {
  return concat(key.suite, '\x1f', key.task, '\x1f', key.length, '\x1f', key.index);
}

std::string identity_of(const ResultRow& row) {
  const RowKey& k = *key_of(row);
  return concat(row.index(), '\x1f', sample_of(k), '\x1f', k.question, '\x1f', k.query, '\x1f',
                k.label, '\x1f', k.method, '\x1f', k.keep, '\x1f', k.type_k, '\x1f', k.type_v);
}

std::string describe(const RowKey& key) {
  return concat(key.suite, " ", key.task, ", length ", key.length, ", sample ", key.index);
}

struct Sample {
  std::vector<ResultRow> rows;
};

struct Shard {
  std::string path;
  std::vector<Sample> samples;
};

// Gathers the rows of all shards into samples and finds what is there twice.
class Gatherer {
 public:
  Shard gather(ResultFile& file) {
    Shard out{file.path, {}};
    std::string current;
    for (ResultRow& row : file.rows) {
      if (is_known(row, file.path)) continue;
      const std::string sample = sample_of(*key_of(row));
      if (out.samples.empty() || sample != current) begin(sample, *key_of(row), file.path, out);
      current = sample;
      out.samples.back().rows.push_back(std::move(row));
    }
    return out;
  }

 private:
  bool is_known(const ResultRow& row, const std::string& path) {
    const auto [found, is_new] = texts_.try_emplace(identity_of(row));
    const std::size_t hash = std::hash<std::string>{}(print_row(row));
    if (is_new) {
      found->second = {hash, path};
      return false;
    }
    if (found->second.hash != hash)
      refuse(concat("the same row is there with different values, in '", found->second.path,
                    "' and '", path, "': ", describe(*key_of(row)), ", ", key_of(row)->label,
                    " at ", key_of(row)->keep, "; merge shards of one run only"));
    return true;
  }

  void begin(const std::string& sample, const RowKey& key, const std::string& path, Shard& out) {
    const auto [found, is_new] = places_.try_emplace(sample, path);
    if (!is_new)
      refuse(concat("the rows of a sample are not together, in '", found->second, "' and '", path,
                    "': ", describe(key)));
    out.samples.emplace_back();
  }

  struct Seen {
    std::size_t hash = 0;
    std::string path;
  };
  std::unordered_map<std::string, Seen> texts_;
  std::unordered_map<std::string, std::string> places_;
};

// Puts the files at the places of their shards; one that is missing stays null.
std::vector<ResultFile*> by_number(std::vector<ResultFile>& files) {
  const RunRow& first = files.front().run;
  if (first.n_shards > kMostShards)
    refuse(concat("'", files.front().path, "' is of ", first.n_shards, " shards, at most ",
                  kMostShards, " can be merged"));
  std::vector<ResultFile*> out(first.n_shards, nullptr);
  for (ResultFile& file : files) {
    if (file.run.n_shards != first.n_shards)
      refuse(concat("'", file.path, "' is of ", file.run.n_shards, " shards, '", files.front().path,
                    "' of ", first.n_shards));
    if (const auto difference = run_difference_beside_shard(first, file.run))
      refuse(concat("'", files.front().path, "' and '", file.path,
                    "' are not of the same run: ", *difference));
    ResultFile*& place = out[file.run.shard - 1];
    if (place != nullptr)
      refuse(concat("shard ", file.run.shard, " of ", first.n_shards, " is there twice: '",
                    place->path, "' and '", file.path, "'"));
    place = &file;
  }
  return out;
}

std::string missing_numbers(const std::vector<ResultFile*>& files) {
  std::string out;
  for (std::size_t i = 0; i < files.size(); ++i)
    if (files[i] == nullptr && out.size() < 200) out += concat(out.empty() ? "" : ", ", i + 1);
  return out;
}

// The samples of a run are dealt out in turn, so the numbers of all shards follow from the largest.
void check_turns(const std::vector<Shard>& shards) {
  std::size_t rounds = 0;
  for (const Shard& shard : shards) rounds = std::max(rounds, shard.samples.size());
  std::size_t last = 0;  // the last shard that has a sample in the last round
  for (std::size_t s = 0; s < shards.size(); ++s)
    if (shards[s].samples.size() == rounds) last = s;
  for (std::size_t s = 0; s < shards.size(); ++s) {
    const std::size_t wanted = s <= last ? rounds : rounds - 1;
    if (rounds > 0 && shards[s].samples.size() != wanted)
      refuse(concat("shard ", s + 1, " of ", shards.size(), " ('", shards[s].path, "') has ",
                    shards[s].samples.size(), " samples where ", wanted,
                    " are its turn: it was not finished; run the same command again, or merge what "
                    "is there with --allow-partial"));
  }
}

}  // namespace

ResultFile merge_results(std::vector<ResultFile> files, bool allow_partial) {
  if (files.empty()) throw Error(ErrorCode::kInvalidArgument, "there are no shards to merge");
  const std::vector<ResultFile*> placed = by_number(files);
  const auto n_missing =
      static_cast<std::size_t>(std::count(placed.begin(), placed.end(), nullptr));
  if (n_missing > 0 && !allow_partial)
    refuse(concat(n_missing, " of ", placed.size(),
                  " shards are missing: ", missing_numbers(placed),
                  "; name their files too, or merge what is there with "
                  "--allow-partial"));
  Gatherer gatherer;
  std::vector<Shard> shards;
  std::size_t rounds = 0;
  for (ResultFile* file : placed) {
    shards.push_back(file != nullptr ? gatherer.gather(*file) : Shard{});
    rounds = std::max(rounds, shards.back().samples.size());
  }
  if (!allow_partial) check_turns(shards);

  ResultFile out;
  out.path = files.front().path;
  out.run = without_shard(files.front().run);
  if (n_missing > 0)
    out.run.left_out.push_back(
        concat(n_missing, " of ", placed.size(), " shards are missing: ", missing_numbers(placed)));
  for (std::size_t round = 0; round < rounds; ++round)
    for (Shard& shard : shards)
      if (round < shard.samples.size())
        for (ResultRow& row : shard.samples[round].rows) out.rows.push_back(std::move(row));
  for (const ResultFile& file : files) {
    out.n_skipped += file.n_skipped;
    out.skipped.insert(out.skipped.end(), file.skipped.begin(), file.skipped.end());
  }
  return out;
}

}  // namespace precis
