#include "tasks/ruler.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "tasks/fake_codecs.h"
#include "tasks/qa_fixtures.h"
#include "tasks/ruler_reading.h"

namespace precis {
namespace {

using test::length_of;
using test::n_occurrences;

const RulerMaterials& materials() {
  static const RulerMaterials all{test::test_essay(), parse_squad(test::kSquadJson),
                                  parse_hotpot(test::kHotpotJson)};
  return all;
}

struct Expected {
  Metric metric;
  std::size_t max_new_tokens;
  std::size_t n_references;  // 0: as the file has them
};

Expected expected_of(const std::string& task) {
  if (task == "vt") return {Metric::kContainAll, 30, 5};
  if (task == "cwe") return {Metric::kContainAll, 120, 10};
  if (task == "fwe") return {Metric::kContainAll, 50, 3};
  if (task.substr(0, 3) == "qa_") return {Metric::kContainAny, 32, 0};
  const bool is_multiple = task == "niah_multivalue" || task == "niah_multiquery";
  return {Metric::kContainAll, 128, is_multiple ? 4u : 1u};
}

// What holds for every task.
void check_sample(const TaskSample& sample, const TokenCodec& codec) {
  const std::size_t length = length_of(sample, codec);
  EXPECT_LE(length, sample.length);
  EXPECT_GE(static_cast<double>(length), 0.99 * static_cast<double>(sample.length));
  const Expected expected = expected_of(sample.task);
  EXPECT_EQ(sample.rule.metric, expected.metric);
  EXPECT_EQ(sample.rule.max_new_tokens, expected.max_new_tokens);
  EXPECT_EQ(sample.rule.chance.has_value(), sample.task.substr(0, 4) == "niah");
  ASSERT_EQ(sample.questions.size(), 1u);
  const TaskQuestion& question = sample.questions[0];
  if (expected.n_references > 0) {
    EXPECT_EQ(question.references.size(), expected.n_references);
  } else {
    EXPECT_FALSE(question.references.empty());
  }
  EXPECT_EQ(test::as_set(question.references).size(), question.references.size());
  for (const std::string& answer : question.references) {
    EXPECT_GE(n_occurrences(sample.context, answer), 1u) << answer;
    EXPECT_EQ(n_occurrences(question.text, answer), 0u) << answer;
    EXPECT_EQ(n_occurrences(question.answer_prefix, answer), 0u) << answer;
  }
  EXPECT_TRUE(test::is_valid_utf8(sample.context));
  EXPECT_TRUE(sample.context.ends_with("\n\n"));
  EXPECT_TRUE(question.text.ends_with("\n"));
  EXPECT_EQ(sample.n_truncated, 0u);
}

class RulerTask : public testing::TestWithParam<std::string> {
 protected:
  TaskSample make(std::size_t length, std::size_t index, std::uint64_t seed,
                  const TokenCodec& codec) const {
    return make_ruler_sample(GetParam(), length, index, seed, codec, materials());
  }
};

TEST_P(RulerTask, MeetsEveryLength) {
  for (const auto& [name, codec] : test::fake_codecs()) {
    for (const std::size_t length : {512, 513, 777, 1000, 1024, 4095, 4096, 16384}) {
      for (std::size_t index = 0; index < 3; ++index) {
        SCOPED_TRACE(testing::Message() << name << " " << length << " " << index);
        const TaskSample sample = make(length, index, 40 + index, codec);
        EXPECT_EQ(sample.task, GetParam());
        EXPECT_EQ(sample.length, length);
        EXPECT_EQ(sample.index, index);
        check_sample(sample, codec);
      }
    }
  }
}

TEST_P(RulerTask, MeetsTheLongestLength) {
  const TokenCodec codec = test::merging_codec();
  check_sample(make(131072, 0, 1, codec), codec);
}

// Where every letter is a token, all units are coarse.
TEST_P(RulerTask, MeetsTheLengthInSingleBytes) {
  const TokenCodec codec = test::bytes_codec(1);
  for (const std::size_t length : {2048, 4096, 10001}) {
    SCOPED_TRACE(length);
    check_sample(make(length, 0, 2, codec), codec);
  }
}

TEST_P(RulerTask, IsMadeOfSeedTaskAndIndex) {
  const TokenCodec codec = test::bytes_codec(4);
  const TaskSample one = make(4096, 3, 7, codec);
  const TaskSample same = make(4096, 3, 7, codec);
  EXPECT_EQ(one.context, same.context);
  EXPECT_EQ(one.questions[0].text, same.questions[0].text);
  EXPECT_EQ(one.questions[0].answer_prefix, same.questions[0].answer_prefix);
  EXPECT_EQ(one.questions[0].references, same.questions[0].references);
  EXPECT_NE(one.context, make(4096, 4, 7, codec).context);
  EXPECT_NE(one.context, make(4096, 3, 8, codec).context);
  if (expected_of(GetParam()).n_references > 0) {
    EXPECT_NE(one.questions[0].references, make(4096, 4, 7, codec).questions[0].references);
    EXPECT_NE(one.questions[0].references, make(4096, 3, 8, codec).questions[0].references);
    // The length changes what is around it, not what is asked.
    EXPECT_EQ(one.questions[0].references, make(1000, 3, 7, codec).questions[0].references);
  }
}

// Tokenizers take most of the time: at most some six passes over the text.
TEST_P(RulerTask, TokenizesSeldom) {
  for (const std::size_t length : {4096, 65536}) {
    std::size_t n_bytes = 0;
    TokenCodec codec = test::merging_codec();
    codec.encode = [&n_bytes, encode = codec.encode](std::string_view text) {
      n_bytes += text.size();
      return encode(text);
    };
    for (std::size_t index = 0; index < 4; ++index) {
      n_bytes = 0;
      const TaskSample sample = make(length, index, 5, codec);
      EXPECT_LE(n_bytes, 7 * sample.context.size()) << length << " " << index;
    }
  }
}

// The least length that a refusal names can be made, and one token less cannot.
TEST_P(RulerTask, NamesTheLeastLength) {
  const TokenCodec codec = test::bytes_codec(4);
  for (const std::size_t length : {0, 1, 60}) {
    try {
      make(length, 0, 1, codec);
      ADD_FAILURE() << "made in " << length << " tokens";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
      const std::string message = e.what();
      EXPECT_NE(message.find("'" + GetParam() + "'"), std::string::npos) << message;
      EXPECT_NE(message.find(std::to_string(length) + " tokens"), std::string::npos) << message;
      const std::string before = "at least ";
      const std::size_t at = message.find(before);
      if (at == std::string::npos) {
        EXPECT_EQ(GetParam().substr(0, 3), "qa_") << message;
        continue;
      }
      const auto least = static_cast<std::size_t>(std::stoul(message.substr(at + before.size())));
      EXPECT_LE(length_of(make(least, 0, 1, codec), codec), least);
      EXPECT_THROW(make(least - 1, 0, 1, codec), Error);
    }
  }
  EXPECT_THROW(make((std::size_t{1} << 20) + 1, 0, 1, codec), Error);
  EXPECT_THROW(make(SIZE_MAX, 0, 1, codec), Error);
}

INSTANTIATE_TEST_SUITE_P(All, RulerTask, testing::ValuesIn(ruler_task_names()),
                         [](const auto& info) { return info.param; });

TEST(Ruler, HasThirteenTasks) {
  EXPECT_EQ(ruler_task_names(),
            (std::vector<std::string>{"niah_single_1", "niah_single_2", "niah_single_3",
                                      "niah_multikey_1", "niah_multikey_2", "niah_multikey_3",
                                      "niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe",
                                      "qa_1", "qa_2"}));
}

TEST(Ruler, SaysWhatIsMissing) {
  const RulerMaterials none;
  std::vector<std::string> possible;
  for (const std::string& task : ruler_task_names()) {
    EXPECT_FALSE(ruler_missing(task, materials())) << task;
    const auto missing = ruler_missing(task, none);
    if (!missing) {
      possible.push_back(task);
      continue;
    }
    try {
      make_ruler_sample(task, 4096, 0, 1, test::words_codec(), none);
      ADD_FAILURE() << task;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(std::string(e.what()).find(*missing), std::string::npos) << e.what();
    }
  }
  EXPECT_EQ(possible, (std::vector<std::string>{"niah_single_1", "niah_multikey_2",
                                                "niah_multikey_3", "vt", "cwe", "fwe"}));
  RulerMaterials blank;
  blank.essay = " \n\t ";
  EXPECT_NE(ruler_missing("niah_single_2", blank).value_or("").find("--essay"), std::string::npos);
  EXPECT_NE(ruler_missing("qa_1", blank).value_or("").find("SQuAD"), std::string::npos);
  EXPECT_NE(ruler_missing("qa_2", blank).value_or("").find("HotpotQA"), std::string::npos);
}

TEST(Ruler, ListsTasksForAnUnknownName) {
  const auto check = [](const auto& call) {
    try {
      call();
      ADD_FAILURE();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
      const std::string message = e.what();
      EXPECT_NE(message.find("'niah'"), std::string::npos);
      for (const std::string& task : ruler_task_names())
        EXPECT_NE(message.find(task), std::string::npos) << task;
    }
  };
  check([] { make_ruler_sample("niah", 4096, 0, 1, test::words_codec(), {}); });
  check([] { (void)ruler_missing("niah", {}); });
}

// A codec that does not count, or not what is there, ends nothing and hangs nothing.
TEST(Ruler, SurvivesStrangeCodecs) {
  TokenCodec codec;
  codec.encode = [](std::string_view) { return std::vector<std::int32_t>(1); };
  EXPECT_FALSE(make_ruler_sample("fwe", 60, 0, 1, codec, {}).context.empty());
  EXPECT_FALSE(make_ruler_sample("niah_single_1", 140, 0, 1, codec, {}).context.empty());
  std::size_t n = 0;
  codec.encode = [&n](std::string_view text) {
    n = (n * 7 + 3) % 101;
    return std::vector<std::int32_t>(text.size() / 9 + n);
  };
  for (const char* task : {"niah_single_1", "niah_multikey_3", "vt", "cwe", "fwe"})
    EXPECT_FALSE(make_ruler_sample(task, 2000, 0, 1, codec, {}).context.empty());
}

}  // namespace
}  // namespace precis
