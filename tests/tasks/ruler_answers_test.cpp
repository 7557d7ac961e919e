// That the answers of generated samples are what their contexts say, and as often as they should.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"
#include "tasks/fake_codecs.h"
#include "tasks/qa_fixtures.h"
#include "tasks/ruler.h"
#include "tasks/ruler_reading.h"

namespace precis {
namespace {

using test::as_set;
using test::n_occurrences;

using Words = std::vector<std::string>;

TaskSample make(const std::string& task, std::size_t length, std::size_t index,
                const TokenCodec& codec) {
  static const RulerMaterials all{test::test_essay(), parse_squad(test::kSquadJson),
                                  parse_hotpot(test::kHotpotJson)};
  return make_ruler_sample(task, length, index, 11, codec, all);
}

// Calls check(sample) for samples of several lengths and tokenizers.
template <class Check>
void for_samples(const std::string& task, const Check& check) {
  for (const auto& [name, codec] : test::fake_codecs())
    for (const std::size_t length : {512, 1000, 4096, 16384})
      for (std::size_t index = 0; index < 4; ++index) {
        SCOPED_TRACE(testing::Message() << task << " " << name << " " << length << " " << index);
        check(make(task, length, index, codec));
      }
}

// ---- Needles

struct NeedleCase {
  const char* task;
  std::size_t n_needles;  // 0: as many as fit
  std::size_t n_keys;
  std::size_t n_asked;
  bool uuid_keys;
  bool uuid_values;
};

constexpr NeedleCase kNeedleCases[] = {
    {"niah_single_1", 1, 1, 1, false, false},   {"niah_single_2", 1, 1, 1, false, false},
    {"niah_single_3", 1, 1, 1, false, true},    {"niah_multikey_1", 4, 4, 1, false, false},
    {"niah_multikey_2", 0, 0, 1, false, false}, {"niah_multikey_3", 0, 0, 1, true, true},
    {"niah_multivalue", 4, 1, 1, false, false}, {"niah_multiquery", 4, 4, 4, false, false},
};

void check_needles(const NeedleCase& expected, const TaskSample& sample) {
  static const std::regex uuid(
      "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}");
  static const std::regex number("[1-9][0-9]{6}");
  static const std::regex pair("[a-z]+-[a-z]+");
  const auto needles = test::needles_in(sample.context);
  ASSERT_EQ(n_occurrences(sample.context, "A secret "), needles.size());
  const TaskQuestion& question = sample.questions[0];
  std::set<std::string> keys;
  std::set<std::string> values;
  std::set<std::string> asked;
  for (const auto& needle : needles) {
    EXPECT_TRUE(std::regex_match(needle.key, expected.uuid_keys ? uuid : pair)) << needle.key;
    EXPECT_TRUE(std::regex_match(needle.value, expected.uuid_values ? uuid : number));
    keys.insert(needle.key);
    EXPECT_TRUE(values.insert(needle.value).second) << needle.value;
    const bool is_answer = as_set(question.references).count(needle.value) > 0;
    EXPECT_EQ(question.text.find(" " + needle.key) != std::string::npos, is_answer);
    EXPECT_EQ(question.answer_prefix.find(" " + needle.key) != std::string::npos, is_answer);
    if (is_answer) asked.insert(needle.key);
  }
  EXPECT_EQ(asked.size(), expected.n_asked);
  if (expected.n_needles > 0) {
    EXPECT_EQ(needles.size(), expected.n_needles);
    EXPECT_EQ(keys.size(), expected.n_keys);
  } else {
    EXPECT_GE(needles.size(), 4u);
    EXPECT_EQ(keys.size(), needles.size());
  }
  for (const std::string& value : question.references)
    EXPECT_EQ(n_occurrences(sample.context, value), 1u) << value;
}

TEST(RulerAnswers, NeedlesAreAsStated) {
  for (const NeedleCase& expected : kNeedleCases)
    for_samples(expected.task, [&](const TaskSample& sample) { check_needles(expected, sample); });
}

// Before a needle ends a sentence (or nothing stands there), after it begins one.
TEST(RulerAnswers, NeedlesStandBetweenSentences) {
  for (const char* task : {"niah_single_1", "niah_single_2", "niah_multivalue", "niah_multiquery"})
    for_samples(task, [](const TaskSample& sample) {
      const std::string& text = sample.context;
      for (const auto& needle : test::needles_in(text)) {
        const std::size_t before = text.find_last_not_of(" \n", needle.at - 1);
        EXPECT_NE(std::string(".!?").find(text[before]), std::string::npos)
            << text.substr(needle.at - 30, 60);
        const std::size_t after = text.find_first_not_of(" \n", needle.end);
        if (after != std::string::npos) {
          EXPECT_TRUE(text[after] >= 'A' && text[after] <= 'Z') << text.substr(needle.end, 30);
        }
      }
    });
}

TEST(RulerAnswers, DepthsAreUniform) {
  for (const char* task : {"niah_single_1", "niah_single_2", "niah_multikey_2"}) {
    std::size_t in_quarter[4] = {};
    constexpr std::size_t kSamples = 400;
    for (std::size_t i = 0; i < kSamples; ++i) {
      const TaskSample sample = make(task, 4096, i, test::bytes_codec(4));
      const std::size_t at = sample.context.find(sample.questions[0].references[0]);
      ++in_quarter[4 * at / sample.context.size()];
    }
    // Mean 100, standard deviation 8.7; the introduction shifts a little.
    for (const std::size_t n : in_quarter) EXPECT_NEAR(static_cast<double>(n), 100, 40) << task;
  }
}

// What an essay happens to contain is not hidden in it.
TEST(RulerAnswers, EssaysHoldNoAnswer) {
  const TokenCodec codec = test::bytes_codec(4);
  RulerMaterials materials{test::test_essay(), {}, {}};
  const TaskSample before = make_ruler_sample("niah_single_2", 2000, 0, 3, codec, materials);
  const std::string value = before.questions[0].references[0];
  const std::string key = test::needles_in(before.context).at(0).key;
  materials.essay = "He read " + value + " and " + key + " aloud. " + materials.essay;
  const TaskSample after = make_ruler_sample("niah_single_2", 2000, 0, 3, codec, materials);
  EXPECT_EQ(n_occurrences(after.context, value), 1u);  // the essay's
  EXPECT_NE(after.questions[0].references[0], value);
  EXPECT_NE(test::needles_in(after.context).at(0).key, key);
  EXPECT_EQ(n_occurrences(after.context, after.questions[0].references[0]), 1u);
}

TEST(RulerAnswers, TakesAnyEssay) {
  const TokenCodec codec = test::bytes_codec(4);
  std::string wide;
  for (int i = 0; i < 3000; ++i) wide += i % 10 == 9 ? "\xE3\x80\x82" : "\xE4\xB8\x80";
  for (const std::string& essay :
       {std::string("x"), std::string(100000, '\x80'), std::string(100000, '.'), wide,
        std::string("One word and no end ") + std::string(5000, 'y'), std::string("\0.\0 A", 5)}) {
    for (const std::size_t length : {512, 4096}) {
      const TaskSample sample =
          make_ruler_sample("niah_single_2", length, 0, 1, codec, {essay, {}, {}});
      EXPECT_TRUE(test::is_valid_utf8(sample.context));
      const std::size_t n = test::length_of(sample, codec);
      EXPECT_LE(n, length) << essay.substr(0, 10);
      EXPECT_GE(n, length - length / 100) << essay.substr(0, 10);
    }
    try {
      make_ruler_sample("niah_single_2", 0, 0, 1, codec, {essay, {}, {}});
      ADD_FAILURE();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
    }
  }
}

TEST(RulerAnswers, NeedleGridMeetsItsDepths) {
  for (const auto& [name, codec] : test::fake_codecs()) {
    for (const std::string& essay : {test::test_essay(), std::string()}) {
      for (const double depth : {0.0, 12.5, 50.0, 90.0, 100.0}) {
        SCOPED_TRACE(testing::Message() << name << " " << depth << " " << essay.size());
        const TaskSample sample = make_needle_sample(depth, 4096, 2, 9, codec, essay);
        EXPECT_EQ(sample.task, concat("needle_depth_", depth));
        EXPECT_EQ(sample.rule.metric, Metric::kContainAll);
        EXPECT_EQ(sample.rule.max_new_tokens, 128u);
        EXPECT_LE(test::length_of(sample, codec), 4096u);
        EXPECT_GE(test::length_of(sample, codec), 4096u - 40u);
        const auto needles = test::needles_in(sample.context);
        ASSERT_EQ(needles.size(), 1u);
        EXPECT_EQ(sample.questions[0].references, Words{needles[0].value});
        // Of the text without introduction and needle; sentences have some 90 bytes at most.
        const double begin = static_cast<double>(sample.context.find("\n\n") + 2);
        const double needle_bytes = static_cast<double>(needles[0].end - needles[0].at);
        const double text = static_cast<double>(sample.context.size()) - begin - needle_bytes;
        const double at = static_cast<double>(needles[0].at) - begin;
        EXPECT_NEAR(at, depth / 100 * text, 110);
      }
      const TaskSample one = make_needle_sample(50, 1000, 0, 9, codec, essay);
      EXPECT_EQ(one.context, make_needle_sample(50, 1000, 0, 9, codec, essay).context);
      EXPECT_NE(one.context, make_needle_sample(50, 1000, 1, 9, codec, essay).context);
      EXPECT_NE(one.context, make_needle_sample(50, 1000, 0, 8, codec, essay).context);
    }
  }
  const TokenCodec codec = test::words_codec();
  for (const double depth : {-1.0, 100.5, std::nan("")})
    EXPECT_THROW(make_needle_sample(depth, 4096, 0, 1, codec, ""), Error);
  EXPECT_THROW(make_needle_sample(50, 20, 0, 1, codec, ""), Error);
}

// ---- Chains

TEST(RulerAnswers, ChainsGiveTheVariables) {
  std::set<std::size_t> n_chains;
  for_samples("vt", [&](const TaskSample& sample) {
    const auto values = test::run_assignments(sample.context);
    ASSERT_TRUE(values) << "a variable is used before it is set";
    const std::string& question = sample.questions[0].text;
    const std::string asked = question.substr(question.find_first_of("0123456789"), 5);
    std::set<std::string> found;
    for (const auto& [name, value] : *values)
      if (value == asked) found.insert(name);
    EXPECT_EQ(found, as_set(sample.questions[0].references));
    EXPECT_EQ(n_occurrences(sample.context, "= " + asked), 1u);
    // Each is set once; all but the last are passed on once.
    std::size_t n = 0;
    for (const std::string& name : sample.questions[0].references) {
      EXPECT_EQ(n_occurrences(sample.context, "VAR " + name + " ="), 1u);
      n += n_occurrences(sample.context, name);
    }
    EXPECT_EQ(n, 9u);
    n_chains.insert(values->size() / 5);
    EXPECT_EQ(values->size() % 5, 0u);
    if (sample.length == 512) {
      EXPECT_EQ(values->size(), 5u);  // no room for an example
    } else if (sample.length >= 4096) {
      EXPECT_EQ(values->size(), 10u);
    }
  });
  EXPECT_EQ(n_chains, (std::set<std::size_t>{1, 2}));
}

TEST(RulerAnswers, ChainsSpreadOverTheText) {
  double first = 0;
  double last = 0;
  constexpr std::size_t kSamples = 200;
  for (std::size_t i = 0; i < kSamples; ++i) {
    const TaskSample sample = make("vt", 4096, i, test::bytes_codec(4));
    const Words& names = sample.questions[0].references;
    const auto size = static_cast<double>(sample.context.size());
    first += static_cast<double>(sample.context.find("VAR " + names[0] + " =")) / size;
    last += static_cast<double>(sample.context.find("VAR " + names[4] + " =")) / size;
  }
  // The least and the largest of five uniform depths: 1/6 and 5/6 of the text, which begins after
  // an example of some 5 %.
  EXPECT_NEAR(first / kSamples, 1.0 / 6 + 0.05, 0.05);
  EXPECT_NEAR(last / kSamples, 5.0 / 6 + 0.01, 0.05);
}

// ---- Words

TEST(RulerAnswers, CommonWordsAreTheMostFrequent) {
  for_samples("cwe", [](const TaskSample& sample) {
    const auto counts = test::count_numbered(sample.context);
    const auto ranked = test::ranked(counts);
    ASSERT_GT(ranked.size(), 20u);
    const bool is_short = sample.length < 1024;
    const std::size_t common = is_short ? 3 : 30;
    const std::size_t rare = is_short ? 1 : 3;
    std::set<std::string> found;
    std::size_t n_partial = 0;
    for (std::size_t i = 0; i < ranked.size(); ++i) {
      const auto& [n, word] = ranked[i];
      if (i < 10) {
        EXPECT_EQ(n, common) << word;
        found.insert(word);
      } else {
        EXPECT_LE(n, rare) << word;
        if (n < rare) ++n_partial;
      }
    }
    EXPECT_LE(n_partial, 1u);  // the last one
    EXPECT_EQ(found, as_set(sample.questions[0].references));
    for (const std::string& answer : found)  // also as a part of other words
      EXPECT_EQ(n_occurrences(sample.context, answer), common) << answer;
    const bool has_example =
        n_occurrences(sample.context, " 1. ") + n_occurrences(sample.context, "\n1. ") > 1;
    if (!is_short) {
      EXPECT_TRUE(has_example);
    } else if (sample.length == 512) {
      EXPECT_FALSE(has_example);
    }
  });
  const TaskSample middle = make("cwe", 2048, 0, test::bytes_codec(4));
  const auto ranked = test::ranked(test::count_numbered(middle.context));
  EXPECT_EQ(ranked[9].first, 6u);
  EXPECT_EQ(ranked[10].first, 1u);
}

TEST(RulerAnswers, CommonWordsFallBackWhereTheyTakeTooMuch) {
  // Single bytes: 300 entries of common words alone would take 3,600 of 4,096 tokens.
  const TaskSample sample = make("cwe", 4096, 0, test::bytes_codec(1));
  EXPECT_EQ(test::ranked(test::count_numbered(sample.context))[0].first, 6u);
}

TEST(RulerAnswers, CommonWordsNeverRunOut) {
  const TaskSample sample = make("cwe", 131072, 0, test::words_codec());
  const auto counts = test::count_numbered(sample.context);
  EXPECT_GT(counts.size(), 10000u);
  const auto ranked = test::ranked(counts);
  EXPECT_EQ(ranked[9].first, 30u);
  EXPECT_EQ(ranked[10].first, 3u);
}

TEST(RulerAnswers, FrequentWordsFollowTheZetaLaw) {
  for_samples("fwe", [](const TaskSample& sample) {
    const auto ranked = test::ranked(test::count_words(sample.context));
    ASSERT_GT(ranked.size(), 5u);
    EXPECT_EQ(ranked[0].second, "...");
    std::set<std::string> found;
    for (std::size_t i = 1; i <= 3; ++i) {
      EXPECT_GT(ranked[i].first, ranked[i + 1].first);  // no ties, least of all with the fourth
      found.insert(ranked[i].second);
    }
    EXPECT_EQ(found, as_set(sample.questions[0].references));
    std::size_t n_words = 0;
    for (const auto& [n, word] : ranked) {
      n_words += n;
      EXPECT_TRUE(word == "..." || word.size() == 6) << word;
    }
    if (sample.length < 16384) return;
    // Shares of 1 / (rank^2 zeta(2)), zeta(2) = pi^2 / 6.
    const double zeta = std::acos(-1.0) * std::acos(-1.0) / 6;
    for (std::size_t rank = 1; rank <= 6; ++rank) {
      const double share =
          static_cast<double>(ranked[rank - 1].first) / static_cast<double>(n_words);
      EXPECT_NEAR(share, 1 / (zeta * static_cast<double>(rank * rank)), 0.015) << rank;
    }
  });
}

// ---- Documents

void check_documents(const QaSet& set, const TaskSample& sample) {
  const TaskQuestion& question = sample.questions[0];
  const auto item = std::find_if(set.items.begin(), set.items.end(), [&](const QaItem& i) {
    return question.text.find(i.question) != std::string::npos;
  });
  ASSERT_NE(item, set.items.end());
  EXPECT_EQ(question.references, item->answers);
  for (const std::size_t golden : item->golden)
    EXPECT_EQ(n_occurrences(sample.context, set.documents[golden]), 1u);
  std::size_t n_documents = 0;
  std::size_t at = 0;
  while (true) {  // numbered without a gap, in order
    const std::size_t next = sample.context.find(concat("Document ", n_documents + 1, ":\n"), at);
    if (next == std::string::npos) break;
    at = next;
    ++n_documents;
  }
  EXPECT_EQ(n_occurrences(sample.context, "Document "), n_documents);
  EXPECT_GT(n_documents, item->golden.size());
}

TEST(RulerAnswers, DocumentsHoldTheAnswer) {
  const QaSet squad = parse_squad(test::kSquadJson);
  const QaSet hotpot = parse_hotpot(test::kHotpotJson);
  for_samples("qa_1", [&](const TaskSample& sample) { check_documents(squad, sample); });
  for_samples("qa_2", [&](const TaskSample& sample) { check_documents(hotpot, sample); });
}

TEST(RulerAnswers, EveryQuestionIsAskedOnce) {
  std::set<std::string> questions;
  for (std::size_t index = 0; index < 5; ++index)
    questions.insert(make("qa_1", 4096, index, test::bytes_codec(4)).questions[0].text);
  EXPECT_EQ(questions.size(), 5u);  // all that have an answer
}

// Paragraphs of the question's own article come first.
TEST(RulerAnswers, NearMissesComeFirst) {
  const QaSet set = parse_squad(test::kSquadJson);
  for (std::size_t index = 0; index < 5; ++index) {
    const TaskSample sample = make("qa_1", 512, index, test::merging_codec());
    const auto item = std::find_if(set.items.begin(), set.items.end(), [&](const QaItem& i) {
      return sample.questions[0].text.find(i.question) != std::string::npos;
    });
    ASSERT_NE(item, set.items.end());
    std::size_t n_other = 0;
    std::size_t n_own = 0;
    for (std::size_t d = 0; d < set.documents.size(); ++d) {
      const bool is_there =
          sample.context.find(set.documents[d].substr(0, 60)) != std::string::npos;
      const auto& own = set.groups[item->group];
      const bool is_own = std::find(own.begin(), own.end(), d) != own.end();
      if (is_there) ++(is_own ? n_own : n_other);
    }
    EXPECT_TRUE(n_own == 3 || n_other == 0) << n_own << " " << n_other;
  }
}

TEST(RulerAnswers, QuestionsWithLongDocumentsWaitForLongSamples) {
  QaSet set;
  set.documents = {std::string(40000, 'x') + " Zed.", "A short one about Yam.", "Nothing here."};
  set.groups = {{0, 1, 2}};
  set.items = {{"Who is long?", {"Zed"}, {0}, 0}, {"Who is short?", {"Yam"}, {1}, 0}};
  const TokenCodec codec = test::bytes_codec(4);
  std::set<std::string> questions;
  for (std::size_t index = 0; index < 6; ++index) {
    EXPECT_EQ(make_ruler_sample("qa_1", 1000, index, 1, codec, {"", set, {}}).questions[0].text,
              "Question: Who is short?\n");
    questions.insert(
        make_ruler_sample("qa_1", 40000, index, 1, codec, {"", set, {}}).questions[0].text);
  }
  EXPECT_EQ(questions.size(), 2u);
  set.items.pop_back();
  EXPECT_THROW(make_ruler_sample("qa_1", 1000, 0, 1, codec, {"", set, {}}), Error);
}

}  // namespace
}  // namespace precis
