#include "report/result_merge.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "report/rows.h"

namespace precis {
namespace {

// A run of n samples with 1 to 3 questions, two methods, and a picture for every third sample.
ResultFile whole_run(std::size_t n) {
  ResultFile file;
  file.path = "whole.jsonl";
  file.run = test::some_run();
  for (std::size_t i = 0; i < n; ++i) {
    for (const char* label : {"full", "selkv"}) {
      for (std::size_t q = 0; q <= i % 3; ++q) {
        ScoreRow row = test::some_score();
        row.key.task = i < n / 2 ? "first" : "second";
        row.key.index = i < n / 2 ? i : i - n / 2;
        row.key.question = q;
        row.key.label = label;
        row.score = 1.0 / static_cast<double>(1 + i + q);
        file.rows.push_back(row);
        if (i % 3 == 0 && q == 0) {
          KeptRow kept = test::some_kept();
          kept.key = row.key;
          file.rows.push_back(kept);
        }
      }
    }
  }
  return file;
}

// Deals the samples out as an evaluation does: sample k of the run to shard k mod n.
std::vector<ResultFile> deal(const ResultFile& whole, std::size_t n_shards) {
  std::vector<ResultFile> out(n_shards);
  for (std::size_t s = 0; s < n_shards; ++s) {
    out[s].path = "shard" + std::to_string(s + 1) + ".jsonl";
    out[s].run = whole.run;
    out[s].run.shard = s + 1;
    out[s].run.n_shards = n_shards;
  }
  std::size_t sample = 0;
  for (std::size_t i = 0; i < whole.rows.size(); ++i) {
    if (i > 0) {
      const RowKey& a = *key_of(whole.rows[i - 1]);
      const RowKey& b = *key_of(whole.rows[i]);
      if (a.task != b.task || a.index != b.index) ++sample;
    }
    out[sample % n_shards].rows.push_back(whole.rows[i]);
  }
  return out;
}

std::string refusal(const std::vector<ResultFile>& shards, bool allow_partial = false) {
  try {
    merge_results(shards, allow_partial);
  } catch (const Error& e) {
    return e.what();
  }
  return "accepted";
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(MergeResults, GivesTheFileOfTheWholeRun) {
  for (const std::size_t n : {1u, 2u, 7u, 12u, 23u}) {
    const ResultFile whole = whole_run(n);
    for (const std::size_t n_shards : {1u, 2u, 3u, 5u, 12u, 30u}) {
      std::vector<ResultFile> shards = deal(whole, n_shards);
      std::reverse(shards.begin(), shards.end());  // in whatever order they are named
      EXPECT_EQ(print_results(merge_results(shards)), print_results(whole)) << n << " " << n_shards;
    }
  }
}

TEST(MergeResults, TimesMergeAlike) {
  ResultFile whole;
  whole.run = test::some_run();
  for (std::size_t i = 0; i < 9; ++i) {
    TimingRow row = test::some_timing();
    row.key.index = i;
    row.decode_ms = static_cast<double>(i);
    whole.rows.push_back(row);
  }
  EXPECT_EQ(print_results(merge_results(deal(whole, 4))), print_results(whole));
}

TEST(MergeResults, MissingShardsAreListed) {
  std::vector<ResultFile> shards = deal(whole_run(20), 5);
  shards.erase(shards.begin() + 3);
  shards.erase(shards.begin() + 1);
  EXPECT_TRUE(has(refusal(shards), "2 of 5 shards are missing: 2, 4;")) << refusal(shards);
  const ResultFile merged = merge_results(shards, true);
  EXPECT_EQ(merged.run.left_out.back(), "2 of 5 shards are missing: 2, 4");
  // The samples of the others, in the run's order.
  const ResultFile whole = whole_run(20);
  std::vector<std::string> wanted;
  std::size_t sample = 0;
  for (std::size_t i = 0; i < whole.rows.size(); ++i) {
    if (i > 0 && (key_of(whole.rows[i])->index != key_of(whole.rows[i - 1])->index ||
                  key_of(whole.rows[i])->task != key_of(whole.rows[i - 1])->task))
      ++sample;
    if (sample % 5 != 1 && sample % 5 != 3) wanted.push_back(print_row(whole.rows[i]));
  }
  std::vector<std::string> found;
  for (const ResultRow& row : merged.rows) found.push_back(print_row(row));
  EXPECT_EQ(found, wanted);
}

TEST(MergeResults, AShardTwiceIsRefused) {
  std::vector<ResultFile> shards = deal(whole_run(6), 2);
  shards.push_back(shards.front());
  shards.back().path = "again.jsonl";
  const std::string message = refusal(shards);
  EXPECT_TRUE(has(message, "shard 1 of 2 is there twice: 'shard1.jsonl' and 'again.jsonl'"));
  EXPECT_EQ(refusal(shards, true), message);
}

TEST(MergeResults, OtherRunsAreRefusedByFieldAndValues) {
  const auto with = [](auto change) {
    std::vector<ResultFile> shards = deal(whole_run(6), 2);
    change(shards[1].run);
    return refusal(shards);
  };
  EXPECT_EQ(with([](RunRow&) {}), "accepted");
  EXPECT_TRUE(has(with([](RunRow& r) { r.seed = 7; }), "field 'seed' is 42 and 7"));
  EXPECT_TRUE(has(with([](RunRow& r) { r.model_sha256 = "x"; }), "field 'model_sha256' is \"aaa"));
  EXPECT_TRUE(has(with([](RunRow& r) { r.settings[1].second = {"50%"}; }),
                  "field 'settings.keep' is [\"25%\"] and [\"50%\"]"));
  EXPECT_TRUE(has(with([](RunRow& r) { r.settings.erase(r.settings.begin()); }),
                  "field 'settings.method' is"));
  EXPECT_TRUE(has(with([](RunRow& r) {
                    r.settings.push_back({"new", {"1"}});
                  }),
                  "field 'settings.new' is missing and [\"1\"]"));
  EXPECT_TRUE(has(with([](RunRow& r) { r.n_shards = 3; }), "is of 3 shards"));
}

TEST(MergeResults, AnUnfinishedShardIsNoticed) {
  std::vector<ResultFile> shards = deal(whole_run(20), 4);
  while (key_of(shards[2].rows.back())->index == 8) shards[2].rows.pop_back();
  const std::string message = refusal(shards);
  EXPECT_TRUE(has(message, "shard 3 of 4 ('shard3.jsonl') has 4 samples where 5 are its turn"))
      << message;
  EXPECT_EQ(refusal(shards, true), "accepted");
}

TEST(MergeResults, RowsThatAreThereTwice) {
  std::vector<ResultFile> shards = deal(whole_run(6), 2);
  const std::string wanted = print_results(merge_results(shards));
  shards[0].rows.insert(shards[0].rows.begin() + 1, shards[0].rows[0]);
  EXPECT_EQ(print_results(merge_results(shards)), wanted);
  std::get<ScoreRow>(shards[0].rows[1]).score = 0.125;
  EXPECT_TRUE(has(refusal(shards), "the same row is there with different values"));
}

TEST(MergeResults, SamplesStayTogether) {
  std::vector<ResultFile> shards = deal(whole_run(6), 2);
  shards[0].rows.push_back(shards[0].rows.front());
  std::get<ScoreRow>(shards[0].rows.back()).key.label = "snapkv";
  EXPECT_TRUE(has(refusal(shards), "the rows of a sample are not together")) << refusal(shards);
  EXPECT_TRUE(has(refusal({}), "no shards"));
}

TEST(MergeResults, ShardNumbersCannotAskForMemory) {
  std::vector<ResultFile> shards = deal(whole_run(2), 1);
  shards[0].run.n_shards = std::size_t{1} << 60;
  EXPECT_TRUE(has(refusal(shards, true), "at most 100000"));
}

}  // namespace
}  // namespace precis
