#include "tasks/metrics.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "tasks/answer_text.h"
#include "tasks/subsequence.h"

namespace precis {
namespace {

using Texts = std::vector<std::string>;

constexpr Metric kAllMetrics[] = {Metric::kContainAll, Metric::kContainAny,     Metric::kF1,
                                  Metric::kRougeL,     Metric::kClassification, Metric::kCount,
                                  Metric::kRetrieval,  Metric::kEditSimilarity};

TaskRule rule_of(Metric metric) {
  TaskRule rule;
  rule.metric = metric;
  return rule;
}

double score(Metric metric, std::string_view answer, Texts references, Texts classes = {}) {
  return score_answer(rule_of(metric), {"", "", std::move(references), std::move(classes)}, answer);
}

bool exact(Metric metric, std::string_view answer, Texts references) {
  return is_exact(rule_of(metric), {"", "", std::move(references), {}}, answer);
}

TEST(Metrics, NamesAreFoundAgain) {
  for (const Metric metric : kAllMetrics) EXPECT_EQ(find_metric(metric_name(metric)), metric);
  EXPECT_STREQ(metric_name(Metric::kContainAll), "contain_all");
  EXPECT_STREQ(metric_name(Metric::kEditSimilarity), "edit_similarity");
  EXPECT_FALSE(find_metric("contain"));
  EXPECT_FALSE(find_metric(""));
}

// metric_pairs.jsonl is made by make_metric_pairs.py with other implementations.
TEST(Metrics, AgreeWithOtherImplementations) {
  std::ifstream in(PRECIS_TASK_DATA "/metric_pairs.jsonl");
  std::string line;
  ASSERT_TRUE(std::getline(in, line));  // the versions
  std::map<Metric, std::size_t> n_pairs;
  while (std::getline(in, line)) {
    const auto pair = nlohmann::json::parse(line);
    const auto metric = find_metric(pair.at("metric").get<std::string>());
    ASSERT_TRUE(metric) << line;
    TaskRule rule = rule_of(*metric);
    rule.first_line_only = pair.at("first_line_only").get<bool>();
    const TaskQuestion question{"", "", pair.at("references").get<Texts>(),
                                pair.at("classes").get<Texts>()};
    EXPECT_NEAR(score_answer(rule, question, pair.at("answer").get<std::string>()),
                pair.at("score").get<double>(), 1e-9)
        << line;
    ++n_pairs[*metric];
  }
  for (const Metric metric : kAllMetrics) EXPECT_GE(n_pairs[metric], 20u) << metric_name(metric);
}

TEST(Metrics, ContainedIsNotExact) {
  const Texts codes = {"4711", "815"};
  for (const char* answer : {"4711, 815", "815 and 4711.", "  \n4711;815", "4711 | 815\nand more",
                             "The 815, and 4711."}) {
    EXPECT_EQ(score(Metric::kContainAll, answer, codes), 1) << answer;
    EXPECT_TRUE(exact(Metric::kContainAll, answer, codes)) << answer;
  }
  for (const char* answer : {"4711, 815, 4711", "4711 815 9", "codes: 4711, 815", "4711815, 815",
                             "4711\n815", "4711, 8155"})
    EXPECT_FALSE(exact(Metric::kContainAll, answer, codes)) << answer;
  EXPECT_FALSE(exact(Metric::kContainAll, "4711", codes));
  EXPECT_FALSE(exact(Metric::kContainAll, "4711", {"4711", "4711"}));
  EXPECT_TRUE(exact(Metric::kContainAll, "4711 4711", {"4711", "4711"}));
  EXPECT_FALSE(exact(Metric::kContainAll, "Salt and rye, rye", {"rye", "rye and salt"}));
  EXPECT_TRUE(exact(Metric::kContainAll, "rye salt, rye", {"rye", "Rye and Salt"}));
  EXPECT_FALSE(exact(Metric::kContainAll, "4711", {"4711", "the"}));  // nothing left of "the"
  EXPECT_TRUE(exact(Metric::kContainAll, "1B0C-77AA.", {"1b0c-77aa"}));
}

TEST(Metrics, ExactIsTheReferenceInItsNormalForm) {
  for (const Metric metric : {Metric::kF1, Metric::kContainAny, Metric::kRougeL,
                              Metric::kClassification, Metric::kCount, Metric::kRetrieval}) {
    EXPECT_TRUE(exact(metric, " \n\nThe North-Sea!\nand more", {"x", "north sea", "northsea"}));
    EXPECT_FALSE(exact(metric, "It is the North Sea", {"north sea"}));
    EXPECT_FALSE(exact(metric, "North", {"north sea"}));
    EXPECT_FALSE(exact(metric, "", {""}));
    EXPECT_FALSE(exact(metric, "x", {}));
    EXPECT_FALSE(exact(metric, "the", {"a"}));
    EXPECT_FALSE(exact(metric, "-", {"+"}));
    EXPECT_TRUE(exact(metric, "+ ", {"+"}));
  }
  EXPECT_TRUE(exact(Metric::kEditSimilarity, "# no\n  x = f(a);\ny", {"x = f(a);"}));
  EXPECT_FALSE(exact(Metric::kEditSimilarity, "x = f(A);", {"x = f(a);"}));
  EXPECT_FALSE(exact(Metric::kEditSimilarity, "x = fa", {"x = f(a)"}));
  EXPECT_FALSE(exact(Metric::kEditSimilarity, "```", {"```"}));
}

TEST(Metrics, BytesThatAreNotUtf8CountAsReplacements) {
  EXPECT_EQ(score(Metric::kF1, "gr\xFC\xDF ok", {"gr\xEF\xBF\xBD\xEF\xBF\xBD ok"}), 1);
  EXPECT_EQ(score(Metric::kEditSimilarity, "\xC3", {"\xEF\xBF\xBD"}), 1);
  EXPECT_EQ(score(Metric::kContainAll, "\xFF red \xE2\x82", {"RED"}), 1);
  EXPECT_EQ(code_points("a\xF0\x9F\x9A\xA2\xC3\xA9\xE2\x82\xAC"), U"a\U0001F6A2\u00E9\u20AC");
}

TEST(Metrics, AnyBytesGiveAScoreBetweenZeroAndOne) {
  std::uint32_t state = 1;
  for (int round = 0; round < 300; ++round) {
    Texts texts(3);
    for (std::string& text : texts) {
      state = state * 1664525u + 1013904223u;
      const std::size_t n = (state >> 16) % 50;
      for (std::size_t i = 0; i < n; ++i) {
        state = state * 1664525u + 1013904223u;
        const auto byte = static_cast<char>(state >> 24);
        text += round % 2 == 0 ? byte : ". \n7aA,\xC3"[(state >> 20) % 8];
      }
    }
    for (const Metric metric : kAllMetrics) {
      const double value = score(metric, texts[0], {texts[1], texts[2]}, texts);
      EXPECT_GE(value, 0);
      EXPECT_LE(value, 1);
      exact(metric, texts[0], {texts[1], texts[2]});
    }
  }
}

TEST(Metrics, NothingAnsweredOrNothingAskedScoresNothing) {
  for (const Metric metric : kAllMetrics) {
    EXPECT_EQ(score(metric, "", {"Paragraph 1"}, {"Paragraph 1"}), 0) << metric_name(metric);
    EXPECT_EQ(score(metric, "Paragraph 1", {}, {"Paragraph 1"}), 0) << metric_name(metric);
    EXPECT_EQ(score(metric, "Paragraph 1", {"Paragraph 1", ""}, {"Paragraph 1"}) > 0,
              metric != Metric::kCount)
        << metric_name(metric);
  }
  EXPECT_EQ(score(Metric::kRetrieval, "1", {"Paragraph one"}), 0);
}

// A megabyte of different kinds against a long reference, each within the limits of the header.
TEST(Metrics, LongAnswersAreBounded) {
  constexpr std::size_t kMegabyte = 1000000;
  std::string words;
  std::string sentences;
  for (std::size_t i = 0; words.size() < kMegabyte; ++i) {
    words += std::to_string(i % 5000) + " ";
    sentences += std::to_string(i % 20000) + ".";
  }
  for (const std::string& text : {words, sentences, std::string(kMegabyte, '\n'),
                                  std::string(kMegabyte, '.'), std::string(kMegabyte, '\xFF')})
    for (const Metric metric : kAllMetrics) {
      const double value = score(metric, text, {text.substr(0, 10000)}, {"7"});
      EXPECT_GE(value, 0);
      EXPECT_LE(value, 1);
      if (metric == Metric::kContainAll || metric == Metric::kF1) {
        EXPECT_FALSE(exact(metric, text, {text.substr(0, 10000)}));
      }
    }
  // What lies past the limits makes no difference.
  const std::string same(kMostEditCharacters, 'x');
  EXPECT_EQ(score(Metric::kEditSimilarity, same + "abc", {same + "defghi"}), 1);
  EXPECT_LT(score(Metric::kEditSimilarity, same, {same.substr(0, 8000)}), 1);
  std::string most;
  for (std::size_t i = 0; i < kMostRougeWords; ++i) most += std::to_string(i) + " ";
  EXPECT_NEAR(score(Metric::kRougeL, most + "more", {most + "other words."}), 1, 1e-7);
}

TEST(LongestCommon, AgreesWithTryingAllSubsequences) {
  std::uint32_t state = 7;
  const auto draw = [&](std::size_t n) {
    std::vector<std::uint32_t> out(n);
    for (std::uint32_t& v : out) v = (state = state * 1664525u + 1013904223u) >> 30;
    return out;
  };
  const auto is_within = [](const std::vector<std::uint32_t>& part,
                            const std::vector<std::uint32_t>& whole) {
    std::size_t i = 0;
    for (const std::uint32_t v : whole)
      if (i < part.size() && part[i] == v) ++i;
    return i == part.size();
  };
  CommonWords common;
  for (int round = 0; round < 60; ++round) {
    const auto a = draw(static_cast<std::size_t>(round) % 9);
    const auto b = draw(static_cast<std::size_t>(round) / 7);
    std::size_t longest = 0;
    for (std::size_t mask = 0; mask < (1u << a.size()); ++mask) {
      std::vector<std::uint32_t> part;
      for (std::size_t i = 0; i < a.size(); ++i)
        if (mask >> i & 1u) part.push_back(a[i]);
      if (part.size() > longest && is_within(part, b)) longest = part.size();
    }
    const auto found = common.find(a, b);
    const std::vector<std::uint32_t> forward(found.rbegin(), found.rend());
    EXPECT_EQ(forward.size(), longest);
    EXPECT_TRUE(is_within(forward, a));
    EXPECT_TRUE(is_within(forward, b));
    EXPECT_EQ(common_length(std::u32string(a.begin(), a.end()), std::u32string(b.begin(), b.end())),
              longest);
  }
}

TEST(AnswerText, LowerCaseIsThatOfThreeAlphabets) {
  EXPECT_EQ(lower_case(code_points("AZ\u00C0\u00D7\u00DE\u0100\u0101\u0130\u0139\u013A\u0147\u014A"
                                   "\u0178\u017D\u0400\u040F\u0410\u042F\u0391")),
            U"az\u00E0\u00D7\u00FE\u0101\u0101\u0130\u013A\u013A\u0148\u014B"
            U"\u00FF\u017E\u0450\u045F\u0430\u044F\u0391");
}

}  // namespace
}  // namespace precis
