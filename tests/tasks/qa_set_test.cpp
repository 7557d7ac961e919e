#include "tasks/qa_set.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/error.h"
#include "tasks/qa_fixtures.h"

namespace precis {
namespace {

using Parse = QaSet (*)(std::string_view);

// What the parser says, "" if it accepts the text.
std::string refusal(Parse parse, const std::string& text) {
  try {
    parse(text);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kFormat);
    return e.what();
  }
  return {};
}

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  const std::size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), by);
}

TEST(QaSet, ReadsSquad) {
  const QaSet set = parse_squad(test::kSquadJson);
  ASSERT_EQ(set.documents.size(), 6u);
  ASSERT_EQ(set.items.size(), 5u);  // one of six has no answer
  EXPECT_EQ(set.groups, (std::vector<std::vector<std::size_t>>{{0, 1, 2}, {3, 4, 5}}));
  EXPECT_EQ(set.items[0].question, "Who founded the town of green stone piers?");
  EXPECT_EQ(set.items[0].answers, (std::vector<std::string>{"Tessa Wrenfold", "Wrenfold"}));
  for (const QaItem& item : set.items) {
    ASSERT_EQ(item.golden.size(), 1u);
    EXPECT_NE(set.documents[item.golden[0]].find(item.answers[0]), std::string::npos);
    const auto& group = set.groups.at(item.group);
    EXPECT_NE(std::find(group.begin(), group.end(), item.golden[0]), group.end());
  }
}

TEST(QaSet, ReadsHotpot) {
  const QaSet set = parse_hotpot(test::kHotpotJson);
  EXPECT_EQ(set.documents.size(), 7u);  // "Dunmere" and "Copper Gate" come twice
  ASSERT_EQ(set.items.size(), 2u);      // the third one's fact is missing
  EXPECT_EQ(set.items[0].golden, (std::vector<std::size_t>{0, 1}));
  EXPECT_EQ(set.documents[1],
            "Ivo Marrick\nIvo Marrick was a builder of bridges. He was born in Sorrel Valley.");
  const QaItem& second = set.items[1];
  EXPECT_EQ(second.answers, std::vector<std::string>{"bone flute"});
  ASSERT_EQ(second.golden.size(), 2u);  // named three times
  EXPECT_EQ(set.documents[second.golden[0]].substr(0, 17), "The Ninth Orchard");
  EXPECT_EQ(set.groups.at(second.group).size(), 4u);
}

TEST(QaSet, NamesWhatIsMissingAndWhere) {
  const std::string squad = test::kSquadJson;
  EXPECT_EQ(refusal(parse_squad, squad), "");
  EXPECT_EQ(refusal(parse_squad, replaced(squad, "\"data\"", "\"date\"")),
            "QA file in SQuAD's format: field 'data' is missing");
  EXPECT_EQ(
      refusal(parse_squad, replaced(squad, "\"question\": \"What is held", "\"ask\": \"What")),
      "QA file in SQuAD's format: data[0].paragraphs[2].qas[0]: field 'question' is missing");
  EXPECT_EQ(refusal(parse_squad, replaced(squad, "{\"text\": \"salt\"", "{\"text\": 7")),
            "QA file in SQuAD's format: data[0].paragraphs[1].qas[0].answers[0].text: is not a "
            "text");
  EXPECT_EQ(refusal(parse_squad, "{\"data\": {}}"),
            "QA file in SQuAD's format: data: is not a list");
  EXPECT_EQ(refusal(parse_squad, "{\"data\": []}"),
            "QA file in SQuAD's format: has no question with an answer");
  EXPECT_EQ(refusal(parse_squad, "[]"), "QA file in SQuAD's format: is not an object");
  EXPECT_EQ(refusal(parse_squad,
                    "{\"data\": [{\"paragraphs\": [{\"context\": \" \\f\\n\", "
                    "\"qas\": []}]}]}"),
            "QA file in SQuAD's format: data[0].paragraphs[0].context: the text is empty");

  const std::string hotpot = test::kHotpotJson;
  EXPECT_EQ(refusal(parse_hotpot, hotpot), "");
  EXPECT_EQ(refusal(parse_hotpot, replaced(hotpot, "\"answer\": \"bone flute\"", "\"x\": 1")),
            "QA file in HotpotQA's format: [1]: field 'answer' is missing");
  EXPECT_EQ(refusal(parse_hotpot, replaced(hotpot, "[\"Ivo Marrick\", 1]", "[]")),
            "QA file in HotpotQA's format: [0].supporting_facts[1]: has 0 items, 1 are needed");
  EXPECT_EQ(
      refusal(parse_hotpot, replaced(hotpot, "[\"Dunmere is a lake without fish.\"]", "null")),
      "QA file in HotpotQA's format: [0].context[3][1]: is not a list");
  EXPECT_EQ(refusal(parse_hotpot, "{}"), "QA file in HotpotQA's format: is not a list");
}

// Cut off anywhere, or with any byte replaced: refused or read, but nothing else happens.
TEST(QaSet, SurvivesDamage) {
  for (const auto& [parse, json] :
       {std::pair<Parse, std::string>{parse_squad, test::kSquadJson},
        std::pair<Parse, std::string>{parse_hotpot, test::kHotpotJson}}) {
    for (std::size_t n = 0; n + 1 < json.size(); ++n)
      EXPECT_NE(refusal(parse, json.substr(0, n)), "") << n;
    for (std::size_t at = 0; at < json.size(); at += 3) {
      for (const char byte : {'{', ']', '"', '0', '\xFF', '\0'}) {
        std::string damaged = json;
        damaged[at] = byte;
        try {
          EXPECT_FALSE(parse(damaged).items.empty());
        } catch (const Error& e) {
          EXPECT_EQ(e.code(), ErrorCode::kFormat);
        }
      }
    }
  }
}

TEST(QaSet, RefusesWhatIsNotJsonOrTooDeep) {
  EXPECT_EQ(refusal(parse_squad, "{\"data\": [1,"),
            "QA file in SQuAD's format: not JSON, at byte 13");
  EXPECT_EQ(refusal(parse_squad, "{\"data\": 1e999}"),
            "QA file in SQuAD's format: not JSON that can be read");
  EXPECT_EQ(refusal(parse_hotpot, std::string(1000000, '[')),
            "QA file in HotpotQA's format: nested more than 32 deep");
  std::string objects;
  for (int i = 0; i < 100000; ++i) objects += "{\"data\":";
  EXPECT_EQ(refusal(parse_squad, objects), "QA file in SQuAD's format: nested more than 32 deep");
  EXPECT_NE(refusal(parse_squad, "{\"data\": [\"\xC3\"]}"), "");  // not UTF-8
}

}  // namespace
}  // namespace precis
