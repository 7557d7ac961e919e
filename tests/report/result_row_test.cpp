#include "report/result_row.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "report/rows.h"

namespace precis {
namespace {

using Json = nlohmann::ordered_json;

const std::vector<ResultRow>& all_kinds() {
  static const std::vector<ResultRow> rows = {test::some_run(), test::some_score(),
                                              test::some_fidelity(), test::some_kept(),
                                              test::some_timing()};
  return rows;
}

std::string refusal(std::string_view line) {
  try {
    parse_row(line);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kFormat);
    return e.what();
  }
  return "accepted";
}

std::string refusal_of(const Json& object) { return refusal(object.dump()); }

Json json_of(const ResultRow& row) { return Json::parse(print_row(row)); }

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(ResultRow, EveryKindComesBack) {
  for (const ResultRow& row : all_kinds()) {
    const std::string line = print_row(row);
    EXPECT_EQ(line.find('\n'), std::string::npos);
    const ResultRow back = parse_row(line);
    EXPECT_EQ(back.index(), row.index());
    EXPECT_EQ(print_row(back), line);
  }
}

// Field by field, so that a field that is neither written nor read is noticed.
TEST(ResultRow, ValuesAreTheSame) {
  const auto run = std::get<RunRow>(parse_row(print_row(test::some_run())));
  EXPECT_EQ(run.suite, "ruler");
  EXPECT_EQ(run.settings, test::some_run().settings);
  EXPECT_EQ(run.input_sha256, test::some_run().input_sha256);
  EXPECT_EQ(run.left_out, test::some_run().left_out);
  EXPECT_EQ(run.seed, 42u);

  const ScoreRow wanted = test::some_score();
  const auto score = std::get<ScoreRow>(parse_row(print_row(wanted)));
  EXPECT_EQ(score.key, wanted.key);
  EXPECT_EQ(score.score, wanted.score);
  EXPECT_EQ(score.chance, wanted.chance);
  EXPECT_EQ(score.answer, wanted.answer);
  EXPECT_EQ(score.references, wanted.references);
  EXPECT_TRUE(score.exact && score.ended && score.used_template);
  EXPECT_EQ(score.n_context, 4000u);
  EXPECT_EQ(score.n_truncated, 5u);

  const auto fidelity = std::get<FidelityRow>(parse_row(print_row(test::some_fidelity())));
  EXPECT_EQ(fidelity.median_kl, 5e-324);
  EXPECT_EQ(fidelity.output_error, test::some_fidelity().output_error);
  EXPECT_EQ(fidelity.log_likelihood_full, -2.25);

  const auto kept = std::get<KeptRow>(parse_row(print_row(test::some_kept())));
  EXPECT_EQ(kept.kept, test::some_kept().kept);
  EXPECT_EQ(kept.merged, test::some_kept().merged);
  EXPECT_EQ(kept.bias, test::some_kept().bias);
  EXPECT_EQ(kept.residual, test::some_kept().residual);
  EXPECT_EQ(kept.words, test::some_kept().words);

  const auto timing = std::get<TimingRow>(parse_row(print_row(test::some_timing())));
  EXPECT_EQ(timing.prefill_ms, 1234.5);
  EXPECT_EQ(timing.peak_bytes, 1u << 30);
}

TEST(ResultRow, FieldsAreInTheirOrder) {
  std::string names;
  const Json timing = json_of(test::some_timing());
  for (const auto& item : timing.items()) names += item.key() + " ";
  EXPECT_EQ(names,
            "kind suite task length index question query label method keep type_k type_v "
            "prefill_ms compress_ms question_ms decode_ms n_decoded peak_bytes ");
  RunRow run = test::some_run();
  run.settings = {{"z", {"1"}}, {"a", {"2"}}};  // not sorted by name
  EXPECT_EQ(std::get<RunRow>(parse_row(print_row(run))).settings, run.settings);
}

TEST(ResultRow, NumbersAtTheirLimits) {
  ScoreRow row = test::some_score();
  row.chance.reset();
  row.n_answer = std::numeric_limits<std::size_t>::max();
  for (const double score : {0.0, 1.0, 0.1, 1e-300, std::nextafter(1.0, 0.0)}) {
    row.score = score;
    const auto back = std::get<ScoreRow>(parse_row(print_row(row)));
    EXPECT_EQ(back.score, score);
    EXPECT_EQ(back.n_answer, row.n_answer);
    EXPECT_FALSE(back.chance);
  }
  TimingRow timing = test::some_timing();
  timing.decode_ms = 1e100;
  EXPECT_EQ(std::get<TimingRow>(parse_row(print_row(timing))).decode_ms, 1e100);
}

TEST(ResultRow, TextIsUnicodeWhateverItWas) {
  ScoreRow row = test::some_score();
  row.answer = "a\xFFz \xC3";
  EXPECT_EQ(std::get<ScoreRow>(parse_row(print_row(row))).answer, "a\xEF\xBF\xBDz \xEF\xBF\xBD");
  row.answer = std::string("nul\0inside", 10);
  EXPECT_EQ(std::get<ScoreRow>(parse_row(print_row(row))).answer, row.answer);
  // As other programs may escape it.
  Json object = json_of(row);
  std::string line = object.dump(-1, ' ', true);
  EXPECT_EQ(std::get<ScoreRow>(parse_row(line)).references[1], "\xE5\x9B\x9B");
}

TEST(ResultRow, MissingFieldsAreNamed) {
  for (const ResultRow& row : all_kinds()) {
    const Json whole = json_of(row);
    for (const auto& item : whole.items()) {
      Json object = whole;
      object.erase(item.key());
      EXPECT_EQ(refusal_of(object), "field '" + item.key() + "' is missing");
    }
  }
}

TEST(ResultRow, WrongTypesAreNamed) {
  for (const ResultRow& row : all_kinds()) {
    const Json whole = json_of(row);
    for (const auto& item : whole.items()) {
      for (const Json& wrong : {Json(Json::array({Json::object()})), Json(-1.5), Json("x"),
                                Json(true), Json({{"a", 7}})}) {
        if (wrong.type() == item.value().type()) continue;
        if (wrong.is_number() && item.value().is_number_float()) continue;
        Json object = whole;
        object[item.key()] = wrong;
        EXPECT_TRUE(has(refusal_of(object), "'" + item.key() + "'") || item.key() == "kind")
            << item.key() << " " << wrong << " " << refusal_of(object);
      }
    }
  }
  Json object = json_of(test::some_score());
  object["n_answer"] = -1;
  EXPECT_EQ(refusal_of(object), "field 'n_answer' is not a whole number of 0 or more");
  object["n_answer"] = 1.0;
  EXPECT_EQ(refusal_of(object), "field 'n_answer' is not a whole number of 0 or more");
  object = json_of(test::some_score());
  object["references"] = {"a", 1};
  EXPECT_EQ(refusal_of(object), "field 'references' is not a text");
  EXPECT_EQ(refusal("[]"), "not a JSON object");
  EXPECT_EQ(refusal("7"), "not a JSON object");
  EXPECT_TRUE(has(refusal(R"({"kind":"scores"})"), "unknown kind 'scores'"));
}

TEST(ResultRow, NumbersMustBeFiniteAndInRange) {
  const Json whole = json_of(test::some_timing());
  std::string line = whole.dump();
  const auto with = [&line](const std::string& number) {
    std::string changed = line;
    changed.replace(changed.find("1234.5"), 6, number);
    return refusal(changed);
  };
  EXPECT_EQ(with("1234.5"), "accepted");
  for (const char* bad : {"NaN", "Infinity", "-Infinity", "nan", "0x10", "1.", ".5", "+1", "01"})
    EXPECT_TRUE(has(with(bad), "not JSON, at byte ")) << bad;
  EXPECT_EQ(with("1e999"), "a number is too large");
  EXPECT_EQ(with("-1e400"), "a number is too large");
  EXPECT_EQ(with("1e101"), "field 'prefill_ms' is not between -1e100 and 1e100");
  EXPECT_EQ(with(std::string(400, '9')), "a number is too large");
  EXPECT_EQ(with("null"), "field 'prefill_ms' is not a number");

  TimingRow timing = test::some_timing();
  timing.decode_ms = std::nan("");
  EXPECT_EQ(refusal(print_row(timing)), "field 'decode_ms' is not a number");

  ScoreRow score = test::some_score();
  score.score = 1.5;
  EXPECT_EQ(refusal(print_row(score)), "field 'score' is 1.5, outside 0 to 1");
  score.score = -0.5;
  EXPECT_EQ(refusal(print_row(score)), "field 'score' is -0.5, outside 0 to 1");
  Json big = json_of(test::some_score());
  std::string text = big.dump();
  text.replace(text.find("\"n_answer\":7"), 12, "\"n_answer\":18446744073709551616");
  EXPECT_EQ(refusal(text), "field 'n_answer' is not a whole number of 0 or more");
}

TEST(ResultRow, RunsOfOtherFormatsAndImpossibleShards) {
  RunRow run = test::some_run();
  run.format = 2;
  EXPECT_EQ(refusal(print_row(run)), "field 'format' is 2, this version reads 1");
  Json object = json_of(test::some_run());
  object["format"] = 4294967297;  // 1 in 32 bits
  EXPECT_TRUE(has(refusal_of(object), "'format'"));
  run = test::some_run();
  run.shard = 3;
  run.n_shards = 2;
  EXPECT_EQ(refusal(print_row(run)), "field 'shard' is 3, outside 1 to n_shards = 2");
  run.shard = 0;
  EXPECT_TRUE(has(refusal(print_row(run)), "'shard' is 0"));
}

TEST(ResultRow, SizesMustAgree) {
  const auto with = [](auto change) {
    KeptRow row = test::some_kept();
    change(row);
    return refusal(print_row(row));
  };
  EXPECT_EQ(with([](KeptRow& r) { r.n_tokens = (std::size_t{1} << 36) + 1; }),
            "field 'n_tokens' is 68719476737, at most 68719476736 are read");
  EXPECT_EQ(with([](KeptRow& r) { r.kept.pop_back(); }),
            "field 'kept' has 5 items, its sizes ask for 6");
  EXPECT_EQ(with([](KeptRow& r) { r.merged.push_back(0); }),
            "field 'merged' has 7 items, its sizes ask for 6");
  EXPECT_EQ(with([](KeptRow& r) { r.residual.pop_back(); }),
            "field 'residual' has 1 items, its sizes ask for 2");
  EXPECT_EQ(with([](KeptRow& r) { r.words.pop_back(); }),
            "field 'words' has 2 items, its sizes ask for 3");
  EXPECT_EQ(with([](KeptRow& r) { r.merged.clear(), r.bias.clear(), r.residual.clear(); }),
            "accepted");
  EXPECT_TRUE(has(with([](KeptRow& r) { r.n_bins = 0; }), "a size of 0"));
  // Products that wrap around in 64 bits.
  EXPECT_TRUE(has(with([](KeptRow& r) { r.n_layers = std::size_t{1} << 63; }), "a size of"));
  EXPECT_TRUE(has(with([](KeptRow& r) { r.n_layers = r.n_heads = r.n_bins = 1u << 24; }),
                  "are more than 16777216 cells"));
}

TEST(ResultRow, CutAnywhereIsRefused) {
  for (const ResultRow& row : all_kinds()) {
    const std::string line = print_row(row);
    for (std::size_t n = 0; n < line.size(); ++n)
      EXPECT_TRUE(has(refusal(std::string_view(line).substr(0, n)), "not JSON, at byte ")) << n;
  }
}

TEST(ResultRow, OneChangedByteNeverDoesMoreThanRefuse) {
  for (const ResultRow& row : all_kinds()) {
    const std::string line = print_row(row);
    for (std::size_t i = 0; i < line.size(); ++i) {
      for (const char c : {'\0', '"', '\\', '{', ']', ',', '9', '\xFF'}) {
        std::string changed = line;
        changed[i] = c;
        refusal(changed);  // fails unless it is an Error(kFormat) or a row
      }
    }
  }
}

TEST(ResultRow, DepthIsBounded) {
  for (const char* open : {"[", "{\"a\":"}) {
    std::string line;
    for (int i = 0; i < 100000; ++i) line += open;
    EXPECT_TRUE(has(refusal(line), "nested deeper than 32"));
    EXPECT_TRUE(has(refusal("{\"kind\":\"score\",\"x\":" + line), "nested deeper than 32"));
  }
  EXPECT_TRUE(has(refusal(std::string(100000, ']')), "not JSON"));
  // Brackets in a text are text.
  ScoreRow row = test::some_score();
  row.answer = std::string(100000, '[') + "\"\\";
  EXPECT_EQ(std::get<ScoreRow>(parse_row(print_row(row))).answer, row.answer);
}

// Objects that keep their order are searched one by one: a million fields would take 10^12 steps.
TEST(ResultRow, LongLinesAreBoundedBeforeTheyAreParsed) {
  ScoreRow row = test::some_score();
  row.answer = std::string(10 << 20, 'x');
  EXPECT_EQ(refusal(print_row(row)), "accepted");
  std::string fields = "{\"kind\":\"score\"";
  for (int i = 0; i < 1000000; ++i) fields += ",\"f" + std::to_string(i) + "\":0";
  EXPECT_EQ(refusal(fields + "}"), "1000001 fields, at most 10000");
  std::string items = "{\"kind\":\"score\",\"references\":[0";
  for (int i = 0; i < 1 << 24; ++i) items += ",0";
  EXPECT_TRUE(has(refusal(items + "]}"), "items, at most 16777216"));
}

TEST(ResultRow, UnknownFieldsAreIgnoredAndTheLastOfTwoCounts) {
  std::string line = print_row(test::some_timing());
  line.insert(line.size() - 1, ",\"new\":[{\"a\":null}],\"n_decoded\":99");
  EXPECT_EQ(std::get<TimingRow>(parse_row(line)).n_decoded, 99u);
}

TEST(ResultRow, KeysOfRows) {
  EXPECT_EQ(key_of(ResultRow(test::some_run())), nullptr);
  for (std::size_t i = 1; i < all_kinds().size(); ++i) {
    ASSERT_NE(key_of(all_kinds()[i]), nullptr);
    EXPECT_EQ(key_of(all_kinds()[i])->task, "niah_single_1");
  }
}

}  // namespace
}  // namespace precis
