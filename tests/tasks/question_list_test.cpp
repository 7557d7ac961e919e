#include "tasks/question_list.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace precis {
namespace {

TEST(Questions, ArePlainLinesOrObjects) {
  const auto questions = parse_questions(
      "What is it?\r\n\n  {\"question\": \"Who?\", \"answers\": [\"Ada\", \"Grace\"]}\n"
      "{\"question\": \"When?\", \"answers\": \"1815\"}\n{\"question\": \"Why?\", \"answers\": "
      "null}");
  ASSERT_EQ(questions.size(), 4u);
  EXPECT_EQ(questions[0].text, "What is it?");
  EXPECT_TRUE(questions[0].references.empty());
  EXPECT_EQ(questions[1].references, (std::vector<std::string>{"Ada", "Grace"}));
  EXPECT_EQ(questions[2].references, std::vector<std::string>{"1815"});
  EXPECT_TRUE(questions[3].references.empty());
}

TEST(Questions, ErrorsNameTheLineAndTheField) {
  const auto refused = [](const std::string& text, const std::vector<std::string>& parts) {
    try {
      parse_questions(text);
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kFormat);
      for (const std::string& part : parts)
        EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  };
  refused("", {"no question"});
  refused(" \n\t\r\n", {"no question"});
  refused("ok?\n{\"q\": 1}", {"line 2", "'question' is missing"});
  refused("{\"question\": 1}", {"line 1", "'question'"});
  refused("{\"question\": \" \"}", {"line 1", "empty"});
  refused("{\"question\": \"a\", \"answers\": 5}", {"line 1", "'answers'"});
  refused("{\"question\": \"a\", \"answers\": [1]}", {"line 1", "an answer"});
  refused("{\"question\": \"a\", \"answers\": [\"\"]}", {"line 1", "an answer"});
  refused("\n\n{\"question\": ", {"line 3", "at byte"});
  refused("{\"question\": 1e999}", {"line 1", "number"});
}

TEST(Questions, SurviveAnyBytes) {
  std::string text(4096, '\0');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 131 + i / 7);
  EXPECT_FALSE(parse_questions(text).empty());
}

}  // namespace
}  // namespace precis
