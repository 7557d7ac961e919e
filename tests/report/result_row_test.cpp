// Every kind of row survives printing and reading, and whatever is wrong with a line is named.
#include "report/result_row.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace precis {
namespace {

using Json = nlohmann::ordered_json;

RowKey some_key() {
  return {"ruler",  "niah_single_1", 4096,  17,    2,     "agnostic",
          "snapkv", "score=snapkv",  "25%", "f16", "q8_0"};
}

RunRow some_run() {
  RunRow run;
  run.suite = "ruler";
  run.version = "0.1.0";
  run.commit = "abc";
  run.model = "model \"x\".gguf";
  run.model_sha256 = std::string(64, 'a');
  run.model_type = "llama 135M Q4_1";
  run.seed = std::numeric_limits<std::uint64_t>::max();
  run.threads = 2;
  run.shard = 3;
  run.n_shards = 4;
  run.left_out = {"qa_1: no file"};
  run.settings = {{"task", {"vt", "cwe"}}, {"length", {"4096"}}, {"essay", {}}};
  run.input_sha256 = {{"essay.txt", "0123"}};
  return run;
}

ScoreRow some_score() {
  ScoreRow row;
  row.key = some_key();
  row.origin = {"0.1.0", std::string(64, 'b'), std::numeric_limits<std::uint64_t>::max()};
  row.used_template = true;
  row.metric = "contain_all";
  row.score = 1.0 / 3.0;
  row.exact = true;
  row.n_context = 4000;
  row.n_question = 30;
  row.n_answer = 12;
  row.ended = true;
  row.n_truncated = 1;
  row.kv_bytes = 123456789;
  row.kv_bytes_full = 987654321;
  row.n_entries = 77;
  row.prompt_sha256 = "ff";
  row.answer = "line one\nline \"two\" \xc3\xa9 \xf0\x9f\x99\x82 \x01";
  row.references = {"1234567", ""};
  return row;
}

FidelityRow some_fidelity() {
  FidelityRow row;
  row.key = some_key();
  row.n_context = 1024;
  row.n_continuation = 256;
  row.kv_bytes = 1;
  row.kv_bytes_full = 4;
  row.n_entries = 5;
  row.mean_kl = 0.0101;
  row.median_kl = 1e-9;
  row.p99_kl = 2.5;
  row.same_top = 0.99;
  row.log_likelihood = -2.25;
  row.log_likelihood_full = -2.125;
  row.output_error = {{0.1, 0.2}, {0.3, 0.4}};
  return row;
}

KeptRow some_kept() {
  KeptRow row;
  row.key = some_key();
  row.n_tokens = 10;
  row.n_layers = 2;
  row.n_heads = 1;
  row.n_bins = 3;
  row.kept = {0, 0.5, 1, 0.25, 0.125, 0.333};
  row.bias = {0, 0, 0, 1, 2, 3};
  row.residual = {0, 0.1};
  row.words = {"one", "two", "three"};
  return row;
}

TimingRow some_timing() {
  TimingRow row;
  row.key = some_key();
  row.prefill_ms = 1.5;
  row.compress_ms = 2.5;
  row.question_ms = 3.5;
  row.decode_ms = 4.5;
  row.n_decoded = 6;
  row.peak_bytes = std::size_t{1} << 40;
  return row;
}

std::vector<ResultRow> all_kinds() {
  return {some_run(), some_score(), some_fidelity(), some_kept(), some_timing()};
}

// What is said about a line that cannot be read; empty if it can.
std::string complaint(const std::string& line) {
  try {
    parse_row(line);
    return {};
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kFormat) << line;
    return e.what();
  }
}

TEST(ResultRow, EveryKindReadsBack) {
  for (const ResultRow& row : all_kinds()) {
    const std::string line = print_row(row);
    EXPECT_EQ(line.find('\n'), std::string::npos);
    const ResultRow again = parse_row(line);
    EXPECT_EQ(again.index(), row.index()) << line;
    EXPECT_EQ(print_row(again), line);
  }
  const auto score = std::get<ScoreRow>(parse_row(print_row(some_score())));
  EXPECT_EQ(score.key, some_key());
  EXPECT_EQ(score.answer, some_score().answer);
  EXPECT_EQ(score.score, some_score().score);
  EXPECT_FALSE(score.chance.has_value());
  const auto run = std::get<RunRow>(parse_row(print_row(some_run())));
  EXPECT_EQ(run.settings, some_run().settings);
  EXPECT_EQ(run.input_sha256, some_run().input_sha256);
  EXPECT_EQ(run.seed, some_run().seed);
  EXPECT_EQ(std::get<FidelityRow>(parse_row(print_row(some_fidelity()))).output_error,
            some_fidelity().output_error);
  EXPECT_EQ(std::get<KeptRow>(parse_row(print_row(some_kept()))).kept, some_kept().kept);
  EXPECT_EQ(std::get<TimingRow>(parse_row(print_row(some_timing()))).peak_bytes,
            some_timing().peak_bytes);
}

TEST(ResultRow, EveryMissingFieldIsNamed) {
  for (const ResultRow& row : all_kinds()) {
    const Json whole = Json::parse(print_row(row));
    for (const auto& [name, value] : whole.items()) {
      Json object = whole;
      object.erase(name);
      EXPECT_NE(complaint(object.dump()).find("'" + name + "' is missing"), std::string::npos)
          << name;
      // null is the right type for one field only.
      object = whole;
      object[name] = nullptr;
      if (name != "chance") {
        EXPECT_NE(complaint(object.dump()).find("'" + name + "'"), std::string::npos) << name;
      }
      object[name] = Json::object({{"nested", Json::array({1, "x"})}});
      EXPECT_FALSE(complaint(object.dump()).empty()) << name;
    }
  }
}

TEST(ResultRow, SizesMustAgree) {
  Json kept = Json::parse(print_row(some_kept()));
  kept["kept"].push_back(0.5);
  EXPECT_EQ(complaint(kept.dump()), "field 'kept' has 7 items, its sizes ask for 6");
  kept = Json::parse(print_row(some_kept()));
  kept["n_bins"] = 0;
  EXPECT_FALSE(complaint(kept.dump()).empty());
  kept["n_bins"] = std::numeric_limits<std::uint64_t>::max();
  EXPECT_FALSE(complaint(kept.dump()).empty());
  kept["n_bins"] = 1 << 20;
  kept["n_layers"] = 1 << 20;
  kept["n_heads"] = 1 << 20;
  EXPECT_FALSE(complaint(kept.dump()).empty());
}

TEST(ResultRow, HostileLinesAreRefused) {
  EXPECT_FALSE(complaint("").empty());
  EXPECT_FALSE(complaint("[]").empty());
  EXPECT_FALSE(complaint("null").empty());
  EXPECT_FALSE(complaint("{\"kind\":7}").empty());
  EXPECT_NE(complaint("{\"kind\":\"scores\"}").find("unknown kind 'scores'"), std::string::npos);
  EXPECT_FALSE(complaint(std::string(100000, '[')).empty());
  EXPECT_FALSE(complaint("{\"kind\":" + std::string(100000, '{')).empty());
  std::string line = print_row(some_score());
  line.replace(line.find("\"score\":0."), 10, "\"score\":1e");
  EXPECT_FALSE(complaint(line).empty());
  const std::string whole = print_row(some_score());
  for (std::size_t n = 0; n < whole.size(); ++n)
    EXPECT_FALSE(complaint(whole.substr(0, n)).empty()) << n;
}

TEST(ResultRow, InvalidTextIsReplaced) {
  ScoreRow row = some_score();
  row.answer = "a\xff\xfe";
  EXPECT_EQ(std::get<ScoreRow>(parse_row(print_row(row))).answer, "a\xef\xbf\xbd\xef\xbf\xbd");
}

TEST(ResultRow, OnlyTheRunHasNoKey) {
  for (const ResultRow& row : all_kinds())
    EXPECT_EQ(key_of(row) == nullptr, std::holds_alternative<RunRow>(row));
}

}  // namespace
}  // namespace precis
