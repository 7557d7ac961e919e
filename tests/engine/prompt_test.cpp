#include "engine/prompt.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "engine/generate.h"
#include "support/test_models.h"

namespace precis {
namespace {

class PromptTest : public testing::Test {
 protected:
  std::shared_ptr<const Engine> load(const char* name) const {
    return Engine::load(test::tiny_model(name), {1});
  }

  std::string text_of(const Engine& engine, const std::vector<Token>& tokens) const {
    std::string text;
    for (const Token token : tokens) text += engine.tokenizer().piece(token, true);
    return text;
  }
};

TEST_F(PromptTest, CutsWhereTheQuestionBegins) {
  const auto engine = load("qwen2");
  const PreparedPrompt p = prepare_prompt(*engine, "A document.", "A question?", true);
  EXPECT_TRUE(p.used_template);
  const std::string context = text_of(*engine, p.context);
  const std::string question = text_of(*engine, p.question);
  EXPECT_TRUE(context.ends_with("A document.")) << context;
  EXPECT_NE(question.find("A question?"), std::string::npos) << question;
  EXPECT_EQ(context.find("A question?"), std::string::npos);
  EXPECT_TRUE(question.starts_with("\n\nA question?")) << question;
}

TEST_F(PromptTest, ADocumentThatHoldsTheQuestionIsStillCutAtItsEnd) {
  const auto engine = load("qwen2");
  const PreparedPrompt p = prepare_prompt(*engine, "What?\n\nWhat?\n\nIndeed", "What?", true);
  EXPECT_TRUE(text_of(*engine, p.context).ends_with("Indeed"));
}

TEST_F(PromptTest, OneOfTheTwoMayBeMissing) {
  const auto engine = load("qwen2");
  EXPECT_TRUE(prepare_prompt(*engine, "Only a document", "", true).question.empty());
  EXPECT_TRUE(prepare_prompt(*engine, "", "Only a question", true).question.empty());
  EXPECT_THROW(prepare_prompt(*engine, " \n", "\t", true), Error);
}

TEST_F(PromptTest, ADocumentIsReadWithoutItsQuestion) {
  for (const char* name : {"qwen2", "gemma3"}) {  // with a template, and without
    const auto engine = load(name);
    for (const bool use_template : {true, false}) {
      const std::vector<Token> context = prepare_document(*engine, " A document.\n", use_template);
      for (const char* question : {"What?", "\n?", "A document.", "<|im_end|>"}) {
        const PreparedPrompt whole =
            prepare_prompt(*engine, " A document.\n", question, use_template);
        const PreparedPrompt later =
            prepare_question(*engine, " A document.\n", question, use_template);
        EXPECT_EQ(context, whole.context) << name << " " << question;
        EXPECT_EQ(later.question, whole.question) << name << " " << question;
      }
    }
    EXPECT_THROW(prepare_document(*engine, " \n", true), Error);
    EXPECT_THROW(prepare_question(*engine, "A document.", " ", true), Error);
  }
}

TEST_F(PromptTest, TextNeverBecomesControlTokens) {
  const auto engine = load("qwen2");
  const auto count = [&](const PreparedPrompt& p) {
    std::size_t n = 0;
    for (const auto* part : {&p.context, &p.question})
      for (const Token token : *part) n += engine->tokenizer().piece(token).empty() ? 1u : 0u;
    return n;
  };
  const std::size_t plain = count(prepare_prompt(*engine, "text", "more", true));
  EXPECT_GT(plain, 0u);
  EXPECT_EQ(count(prepare_prompt(*engine, "te<|im_end|>xt <|im_start|>", "mo<|im_end|>re", true)),
            plain);
}

TEST_F(PromptTest, WithoutATemplateTheTextIsRaw) {
  const auto engine = load("gemma3");
  const PreparedPrompt p = prepare_prompt(*engine, "Doc", "Ask", true);
  EXPECT_FALSE(p.used_template);
  EXPECT_NE(engine->tokenizer().detokenize(p.question).find("Ask"), std::string::npos);
  EXPECT_TRUE(engine->tokenizer().detokenize(p.question).ends_with("\n"));
  const std::vector<Token> doc = engine->tokenizer().tokenize("Doc", true, false);
  EXPECT_EQ(p.context, doc);
}

TEST_F(PromptTest, AnswersAreWholeCharactersAndStopInTime) {
  const auto engine = load("llama");
  Session session(engine);
  session.prefill(engine->tokenizer().tokenize("Some text to go on from", true, false));
  const std::size_t n_prompt = session.next_position();
  Sampler sampler({});
  std::string streamed;
  const Generation g =
      generate(session, sampler, {20, true}, [&](const std::string& s) { streamed += s; });
  EXPECT_EQ(g.tokens.size(), 20u);
  EXPECT_EQ(streamed, g.text);
  EXPECT_EQ(session.next_position(), n_prompt + 19);  // the last token was drawn, not read
  Utf8Assembler check;
  check.push(g.text);
  check.finish();
  EXPECT_EQ(check.n_replaced(), 0u);
}

TEST_F(PromptTest, GenerationStopsWhenTheContextIsFull) {
  const auto engine = load("llama");
  Session session(engine);
  const std::size_t context = engine->config().n_ctx_train;
  std::vector<Token> tokens(context - 3, 5);
  session.prefill(tokens);
  Sampler sampler({});
  const Generation g = generate(session, sampler, {100, true});
  EXPECT_EQ(session.next_position(), context);
  EXPECT_EQ(g.tokens.size(), 4u);
}

}  // namespace
}  // namespace precis
