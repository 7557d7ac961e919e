#include "tasks/longbench.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/utf8.h"
#include "tasks/metrics.h"

namespace precis {
namespace {

const std::string kFolder = PRECIS_TASK_DATA "/longbench";

// Three bytes a token, the last one shorter, so that tokens end within characters.
TokenCodec byte_codec() {
  return {[](std::string_view text) {
            std::vector<std::int32_t> out;
            for (std::size_t i = 0; i < text.size(); i += 3) {
              std::int32_t token = 1;
              for (const char c : text.substr(i, 3)) token = token << 8 | static_cast<uint8_t>(c);
              out.push_back(token);
            }
            return out;
          },
          [](std::span<const std::int32_t> tokens) {
            std::string out;
            for (const std::int32_t token : tokens)
              for (int shift = 16; shift >= 0; shift -= 8)
                if (token >> (shift + 8) != 0) out += static_cast<char>(token >> shift & 0xFF);
            return out;
          }};
}

// What `action` throws: the name of its code and its message. Empty: nothing.
template <class Action>
std::string error_of(Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    return concat(error_code_name(error.code()), ": ", error.what());
  }
  return {};
}

std::vector<LongBenchRecord> records_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<LongBenchRecord> out;
  read_longbench(in, "file", [&](LongBenchRecord&& record) {
    out.push_back(std::move(record));
    return true;
  });
  return out;
}

std::vector<LongBenchRecord> records_in(const std::string& task) {
  std::vector<LongBenchRecord> out;
  read_longbench(concat(kFolder, "/", task, ".jsonl"), [&](LongBenchRecord&& record) {
    out.push_back(std::move(record));
    return true;
  });
  return out;
}

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  const std::size_t at = text.find(what);
  return at == std::string::npos ? text : text.replace(at, what.size(), with);
}

bool is_valid_utf8(std::string_view text) {
  Utf8Assembler assembler;
  return assembler.push(text) == text && assembler.finish().empty();
}

// metric, new tokens, template, first line only, stop at newline; from LongBench's configuration,
// task by task.
TEST(LongBench, RulesAreThoseOfTheBenchmark) {
  const std::map<std::string, std::string> expected = {
      {"narrativeqa", "f1 128 100"},     {"qasper", "f1 128 100"},
      {"multifieldqa_en", "f1 64 100"},  {"hotpotqa", "f1 32 100"},
      {"2wikimqa", "f1 32 100"},         {"musique", "f1 32 100"},
      {"gov_report", "rouge_l 512 100"}, {"qmsum", "rouge_l 512 100"},
      {"multi_news", "rouge_l 512 100"}, {"trec", "classification 64 010"},
      {"triviaqa", "f1 32 010"},         {"samsum", "rouge_l 128 011"},
      {"passage_count", "count 32 100"}, {"passage_retrieval_en", "retrieval 32 100"},
      {"lcc", "edit_similarity 64 000"}, {"repobench-p", "edit_similarity 64 000"},
  };
  const auto names = longbench_task_names();
  EXPECT_EQ(names.size(), 16u);
  EXPECT_EQ(names.front(), "narrativeqa");
  EXPECT_EQ(names.back(), "repobench-p");
  for (const std::string& name : names) {
    const TaskRule rule = longbench_rule(name);
    ASSERT_EQ(expected.count(name), 1u) << name;
    EXPECT_EQ(concat(metric_name(rule.metric), " ", rule.max_new_tokens, " ", rule.use_template,
                     rule.first_line_only, rule.stop_at_newline),
              expected.at(name));
  }
  const std::string error = error_of([] { longbench_rule("qasperr"); });
  EXPECT_NE(error.find("invalid_argument: LongBench has no task 'qasperr'"), std::string::npos);
  EXPECT_NE(error.find("repobench-p"), std::string::npos);
}

TEST(LongBench, EverySetIsReadAndItsReferenceScoresFull) {
  const auto prompts = default_longbench_prompts();
  const auto files = list_longbench_files(kFolder);
  ASSERT_EQ(files.size(), 16u);
  for (const LongBenchFile& file : files) {
    const auto records = records_in(file.task);
    ASSERT_EQ(records.size(), 2u) << file.task;
    for (std::size_t i = 0; i < records.size(); ++i) {
      const LongBenchRecord& record = records[i];
      EXPECT_EQ(record.dataset, file.task);
      EXPECT_EQ(record.language, "en");
      EXPECT_EQ(record.id, concat(file.task, "-", i));
      EXPECT_GT(record.n_words, 3u);
      EXPECT_EQ(record.input.empty(), !has_longbench_input(file.task)) << file.task;
      const TaskSample sample =
          make_longbench_sample(file.task, record, i, prompts, byte_codec(), 0);
      EXPECT_EQ(sample.task, file.task);
      EXPECT_EQ(sample.index, i);
      EXPECT_EQ(sample.length, 0u);
      EXPECT_EQ(sample.n_truncated, 0u);
      EXPECT_TRUE(sample.context.ends_with(record.context));
      EXPECT_GT(sample.context.size(), record.context.size());
      ASSERT_EQ(sample.questions.size(), 1u);
      const TaskQuestion& question = sample.questions[0];
      EXPECT_NE(question.text.find(record.input), std::string::npos);
      EXPECT_FALSE(question.text.empty());
      EXPECT_EQ(question.answer_prefix, "");
      EXPECT_EQ(question.references, record.answers);
      EXPECT_EQ(question.classes, record.classes);
      EXPECT_NEAR(score_answer(sample.rule, question, record.answers[0]), 1, 1e-6) << file.task;
      EXPECT_TRUE(is_exact(sample.rule, question, record.answers[0])) << file.task;
      EXPECT_LT(score_answer(sample.rule, question, "nothing of it: 99"), 0.5) << file.task;
    }
  }
}

TEST(LongBench, ReadingStopsWhereTheCallerHasEnough) {
  std::size_t n = 0;
  EXPECT_EQ(read_longbench(kFolder + "/lcc.jsonl", [&](LongBenchRecord&&) { return ++n < 1; }), 1u);
  EXPECT_EQ(n, 1u);
  const std::string line = R"({"input":"","context":"c","answers":["x"],"dataset":"lcc"})";
  EXPECT_EQ(records_of("").size(), 0u);
  EXPECT_EQ(records_of("\n \r\n" + line + "\r\n\n" + line).size(), 2u);  // no break at the end
  const auto record = records_of(line).at(0);
  EXPECT_EQ(record.classes.size() + record.n_words + record.id.size(), 0u);
}

TEST(LongBench, MalformedLinesAreNamed) {
  const std::string good =
      R"({"input":"i","context":"c","answers":["x"],"dataset":"lcc","length":3,)"
      R"("language":"en","all_classes":null,"_id":"7"})";
  ASSERT_EQ(records_of(good).size(), 1u);
  const auto fault = [&](const std::string& from, const std::string& to) {
    EXPECT_NE(good.find(from), std::string::npos) << from;
    return error_of([&] { records_of(good + "\n\n" + replaced(good, from, to)); });
  };
  const std::string where = "format: file, line 3: ";
  EXPECT_EQ(fault("\"input\"", "\"in\""), where + "field 'input' is missing");
  EXPECT_EQ(fault("\"context\"", "\"text\""), where + "field 'context' is missing");
  EXPECT_EQ(fault("\"answers\"", "\"answer\""), where + "field 'answers' is missing");
  EXPECT_EQ(fault("\"dataset\"", "\"data\""), where + "field 'dataset' is missing");
  EXPECT_EQ(fault("\"i\"", "null"), where + "field 'input' is not text");
  EXPECT_EQ(fault("\"c\"", "[\"c\"]"), where + "field 'context' is not text");
  EXPECT_EQ(fault("[\"x\"]", "\"x\""), where + "field 'answers' is not a list of texts");
  EXPECT_EQ(fault("[\"x\"]", "[1]"), where + "field 'answers' is not a list of texts");
  EXPECT_EQ(fault("[\"x\"]", "[]"), where + "field 'answers' is empty, at least one is needed");
  EXPECT_EQ(fault(":3", ":-3"), where + "field 'length' is not a whole number of 0 or more");
  EXPECT_EQ(fault(":3", ":1e999"), where + "a number is too large");
  EXPECT_EQ(fault("null", "{}"), where + "field 'all_classes' is not a list of texts");
  EXPECT_EQ(fault("\"7\"", "7"), where + "field '_id' is not text");
  EXPECT_EQ(fault("{\"input\"", "{"), where + "not JSON at byte 2");
  EXPECT_EQ(fault("\"c\"", "\"\xFF\""), where + "not JSON at byte 25");
  EXPECT_EQ(fault(good, "[]"), where + "not an object");
  EXPECT_EQ(error_of([&] { records_of(std::string(100000, '[')); }),
            "format: file, line 1: not JSON at byte 100001");
  EXPECT_EQ(error_of([&] { records_of(good.substr(0, 50)); }),
            "format: file, line 1: not JSON at byte 51");
  EXPECT_EQ(error_of([&] { records_of(good + "\n" + std::string(kMostLongBenchLine + 1, ' ')); }),
            "format: file, line 2: longer than 67108864 bytes; a record is one line of JSON");
}

TEST(LongBench, FilesAreFoundByTheirNames) {
  EXPECT_EQ(list_longbench_files(kFolder + "/trec.jsonl").at(0).task, "trec");
  EXPECT_EQ(list_longbench_files(kFolder)[15].path, kFolder + "/repobench-p.jsonl");
  EXPECT_EQ(error_of([] { list_longbench_files("/no/such"); }),
            "io: there is no file or folder '/no/such'");
  EXPECT_NE(error_of([] { list_longbench_files(PRECIS_TASK_DATA); }).find("has none of the 16"),
            std::string::npos);
  EXPECT_NE(error_of([] {
              list_longbench_files(PRECIS_TASK_DATA "/metric_pairs.jsonl");
            }).find("metric_pairs.jsonl' does not have the name of a LongBench task"),
            std::string::npos);
  const auto none = [](LongBenchRecord&&) { return true; };
  EXPECT_EQ(error_of([&] { read_longbench("/no/such", none); }), "io: cannot open '/no/such'");
  EXPECT_EQ(error_of([&] { read_longbench(kFolder, none); }).substr(0, 3), "io:");  // a folder
}

// The official form, with texts of our own.
TEST(LongBench, GivenPromptsAreUsedToTheLetter) {
  const std::map<std::string, std::string> texts = {
      {"qasper", "Paper {{1}}: {context}\n Q: {input}\n A:"},
      {"gov_report", "R: {context}\nS:"},
      {"lcc", "{context}next:"},
      {"repobench-p", "go on\n{context}{input}next:"},
      {"triviaqa", "{context}{input}"},
      {"samsum", "{context}\n{input}{input}"},
  };
  nlohmann::json file(texts);
  file["dureader"] = "{input}";  // not an English task
  const auto prompts = parse_longbench_prompts(file.dump());
  EXPECT_EQ(prompts.size(), texts.size());
  for (auto [task, text] : texts)
    for (const LongBenchRecord& record : records_in(task)) {
      const TaskSample sample = make_longbench_sample(task, record, 0, prompts, byte_codec(), 0);
      text = replaced(replaced(text, "{{", "{"), "}}", "}");
      const std::string head = text.substr(0, text.find("{context}")) + record.context;
      std::string tail = text.substr(text.find("{context}") + 9);
      tail = replaced(replaced(tail, "{input}", record.input), "{input}", record.input);
      EXPECT_EQ(sample.context, head) << task;
      EXPECT_EQ(sample.questions[0].text, tail) << task;
    }
  // Braces of the data are no places.
  LongBenchRecord record{"{context}{{", "{input}", {"x"}, {}, "qasper", "", "", 0};
  const TaskSample sample = make_longbench_sample("qasper", record, 0, prompts, byte_codec(), 0);
  EXPECT_EQ(sample.context, "Paper {1}: {input}");
  EXPECT_EQ(sample.questions[0].text, "\n Q: {context}{{\n A:");
  EXPECT_EQ(error_of([&] { make_longbench_sample("trec", record, 3, prompts, byte_codec(), 0); }),
            "invalid_argument: trec sample 3: the file of prompts has none of this name");
}

TEST(LongBench, FaultyPromptsAreNamed) {
  const auto fault = [](const std::string& task, const std::string& text) {
    return error_of([&] { parse_longbench_prompts(nlohmann::json{{task, text}}.dump()); });
  };
  const std::string where = "format: LongBench prompt of 'qasper': ";
  EXPECT_EQ(fault("qasper", "no place"), where + "{context} is missing, the place of the document");
  EXPECT_EQ(fault("qasper", "{context}"), where + "{input} is missing, the place of the question");
  EXPECT_EQ(fault("gov_report", "{context}"), "");
  EXPECT_EQ(fault("qasper", "{input}{context}").substr(0, where.size() + 7), where + "{input}");
  EXPECT_EQ(fault("qasper", "{context}{context}{input}").substr(0, where.size() + 23),
            where + "{context} occurs twice,");
  EXPECT_EQ(fault("qasper", "{context}{input}{x}"),
            where + "unknown place {x}; there are {context} and {input}");
  EXPECT_EQ(fault("qasper", "{context}{input}}"),
            where + "a single '}' at byte 16; for the character itself, double it");
  EXPECT_EQ(fault("qasper", "{context}{input"),
            where + "a single '{' at byte 9; for the character itself, double it");
  EXPECT_NE(fault("other", "{context}").find("none of the 16"), std::string::npos);
  EXPECT_EQ(error_of([] { parse_longbench_prompts("{\"lcc\": 7}"); }),
            "format: LongBench prompt of 'lcc': not text");
  EXPECT_EQ(error_of([] { parse_longbench_prompts("[]"); }),
            "format: LongBench prompts: not an object of texts by task");
  EXPECT_EQ(error_of([] { parse_longbench_prompts("{\"lcc\": "); }),
            "format: LongBench prompts: not JSON at byte 9");
}

TEST(LongBench, OurWordingHasAllTasksAndPlaces) {
  const auto prompts = default_longbench_prompts();
  EXPECT_EQ(prompts.size(), 16u);
  for (const auto& [task, prompt] : prompts) {
    EXPECT_FALSE(prompt.before_context.empty()) << task;
    EXPECT_EQ(prompt.after_context.size(), has_longbench_input(task) ? 2u : 1u) << task;
  }
}

TEST(LongBench, RecordsThatDoNotFitTheTaskAreRefused) {
  const auto prompts = default_longbench_prompts();
  const auto error = [&](std::string_view task, const LongBenchRecord& record) {
    return error_of([&] { make_longbench_sample(task, record, 4, prompts, byte_codec(), 0); });
  };
  LongBenchRecord record{"i", "c", {"x"}, {}, "trec", "", "", 0};
  EXPECT_EQ(error("lcc", record),
            "format: lcc sample 4: the record says that it is of dataset 'trec'");
  EXPECT_EQ(error("trec", record),
            "format: trec sample 4: field 'all_classes' lists no class, and the metric needs them");
  EXPECT_EQ(error("trecc", record).substr(0, 17), "invalid_argument:");
  record.classes = {"x"};
  EXPECT_EQ(error("trec", record), "");
  record.dataset = "trec_e";
  EXPECT_EQ(error("trec", record), "");
  const auto bare = parse_longbench_prompts(R"({"lcc": "{context}"})");
  EXPECT_EQ(error_of([&] {
              make_longbench_sample("lcc", {"", "", {"x"}, {}, "lcc", "", "", 0}, 1, bare,
                                    byte_codec(), 0);
            }),
            "format: lcc sample 1: the context is empty");
}

TEST(TruncateMiddle, KeepsFirstAndLastHalf) {
  const TokenCodec codec = byte_codec();
  std::size_t n_lost = 99;
  const std::string text = "aaabbbcccdddeeefffg";  // 7 tokens
  EXPECT_EQ(truncate_middle(codec, text, 7, &n_lost), text);
  EXPECT_EQ(n_lost, 0u);
  EXPECT_EQ(truncate_middle(codec, text, 6, &n_lost), "aaabbbccceeefffg");
  EXPECT_EQ(n_lost, 1u);
  EXPECT_EQ(truncate_middle(codec, text, 5, &n_lost), "aaabbbfffg");
  EXPECT_EQ(n_lost, 3u);
  EXPECT_EQ(truncate_middle(codec, text, 1, &n_lost), "");
  EXPECT_EQ(n_lost, 7u);
  EXPECT_EQ(truncate_middle(codec, text, 0, nullptr), "");
  EXPECT_EQ(truncate_middle(codec, "", 0, &n_lost), "");
  EXPECT_EQ(n_lost, 0u);
}

TEST(TruncateMiddle, ValidUtf8StaysValidAndIsOnlyCut) {
  const TokenCodec codec = byte_codec();
  std::string text;
  for (int i = 0; i < 12; ++i) text += "x\u00E9\u20AC\U0001F6A2";  // 1 + 2 + 3 + 4 bytes
  for (std::size_t limit = 2; limit < 41; ++limit) {
    std::size_t n_lost = 0;
    const std::string cut = truncate_middle(codec, text, limit, &n_lost);
    EXPECT_TRUE(is_valid_utf8(cut)) << limit;
    EXPECT_EQ(n_lost, limit >= 40 ? 0 : 40 - limit / 2 * 2) << limit;
    // At most 3 bytes are dropped on either side, and the ends are those of the text.
    const std::size_t most = limit / 2 * 6;
    EXPECT_LE(cut.size(), most);
    EXPECT_GE(cut.size() + 6, std::min(most, text.size()));
    std::size_t n_front = 0;
    while (n_front < cut.size() && cut[n_front] == text[n_front]) ++n_front;
    EXPECT_TRUE(text.ends_with(cut.substr(n_front))) << limit;
  }
  // Bytes that are no UTF-8 do no harm.
  for (const char byte : {'\x80', '\xFF', '\xE2'})
    EXPECT_LE(truncate_middle(codec, std::string(100, byte), 4, nullptr).size(), 12u);
}

// LongBench cuts the prompt's tokens, whatever they belong to.
TEST(TruncateMiddle, SampleIsThePromptWithoutItsMiddle) {
  const TokenCodec codec = byte_codec();
  const auto prompts = parse_longbench_prompts(R"({"qasper": "Read: {context} Ask: {input}?"})");
  std::string document;
  for (int i = 0; i < 100; ++i) document += std::to_string(i) + " caf\u00E9 ";
  const LongBenchRecord record{"what", document, {"x"}, {}, "qasper", "", "", 0};
  const std::string whole = "Read: " + document + " Ask: what?";
  const auto tokens = codec.encode(whole);
  std::size_t n_whole = 0;  // cuts between characters
  for (std::size_t limit = 8; limit < tokens.size() + 3; ++limit) {
    const TaskSample sample = make_longbench_sample("qasper", record, 0, prompts, codec, limit);
    EXPECT_EQ(sample.questions[0].text, " Ask: what?");
    const bool is_cut = limit < tokens.size();
    EXPECT_EQ(sample.n_truncated, is_cut ? tokens.size() - limit / 2 * 2 : 0);
    const std::string cut = sample.context + sample.questions[0].text;
    if (!is_cut) {
      EXPECT_EQ(cut, whole);
    }
    if (is_cut) {
      const auto first = codec.decode(std::span(tokens).first(limit / 2));
      const auto last = codec.decode(std::span(tokens).last(limit / 2));
      n_whole += is_valid_utf8(first) && is_valid_utf8(last);
      if (is_valid_utf8(first) && is_valid_utf8(last)) {
        EXPECT_EQ(cut, first + last);
      }
    }
    EXPECT_TRUE(is_valid_utf8(cut));
    EXPECT_LE(codec.count(cut), limit + 1);
  }
  EXPECT_GT(n_whole, tokens.size() / 4);
}

TEST(TruncateMiddle, QuestionIsNeverCut) {
  const TokenCodec codec = byte_codec();
  const auto prompts = parse_longbench_prompts(R"({"qasper": "{context}{input}"})");
  const std::string question(30, 'q');  // 10 tokens
  const LongBenchRecord record{question, std::string(60, 'd'), {"x"}, {}, "qasper", "", "", 0};
  const auto sample_for = [&](std::size_t limit) {
    return make_longbench_sample("qasper", record, 2, prompts, codec, limit);
  };
  const TaskSample tight = sample_for(16);
  EXPECT_EQ(tight.questions[0].text, question);
  EXPECT_EQ(tight.context, std::string(18, 'd'));  // 6 tokens: the first 3 and the last 3
  EXPECT_EQ(tight.n_truncated, 14u);
  const TaskSample exactly = sample_for(20);  // the second half is the question
  EXPECT_EQ(exactly.context, std::string(30, 'd'));
  EXPECT_EQ(exactly.n_truncated, 10u);
  EXPECT_EQ(sample_for(12).context, std::string(6, 'd'));
  EXPECT_EQ(error_of([&] { sample_for(11); }),
            "invalid_argument: qasper sample 2: the question alone has 10 tokens, which leaves "
            "nothing of the document where the prompt is limited to 11; raise the limit");
  EXPECT_NE(error_of([&] { sample_for(3); }), "");
  // The document's only token that fits is a part of a character, so nothing is left of it.
  const LongBenchRecord ship{"qqq", "\U0001F6A2\U0001F6A2x", {"x"}, {}, "qasper", "", "", 0};
  EXPECT_NE(error_of([&] { make_longbench_sample("qasper", ship, 0, prompts, codec, 2); }), "");
  // A question that repeats what precedes it is not taken for cut off.
  const LongBenchRecord same{
      std::string(30, 'd'), std::string(60, 'd'), {"x"}, {}, "qasper", "", "", 0};
  const TaskSample alike = make_longbench_sample("qasper", same, 0, prompts, codec, 16);
  EXPECT_EQ(alike.context.size(), 18u);
  EXPECT_EQ(alike.questions[0].text.size(), 30u);
}

}  // namespace
}  // namespace precis
