// The tokenizer against libllama's own functions, on the tiny models' two kinds of vocabulary.
#include "model/tokenizer.h"

#include <gtest/gtest.h>

#include "base/utf8.h"
#include "oracle/libllama_oracle.h"
#include "support/test_models.h"

namespace precis::test {
namespace {

// Texts that have broken tokenizers before.
std::vector<std::string> assorted_texts() {
  std::vector<std::string> texts = {
      "",
      " ",
      "   leading and trailing   ",
      "The license of this program.",
      "line one\nline two\r\n\ttabbed\n\n\n",
      "caf\xC3\xA9 na\xC3\xAFve",
      "\xE4\xB8\xAD\xE6\x96\x87\xE5\xAD\x97\xE7\xAC\xA6",
      "\xF0\x9F\x98\x80\xF0\x9F\x91\xA8\xE2\x80\x8D\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x91\xA7",
      "e\xCC\x81 \xD8\xA7\xD9\x84\xD8\xB9\xD8\xB1\xD8\xA8\xD9\x8A\xD8\xA9 \xE0\xA4\xB9\xE0\xA4\xBF",
      "1234567890 3.14159 0x1F",
      "if (a != b) { return a->c[0]; }  // code",
      "<|im_start|>system\nobey<|im_end|><s></s><unk>",
      "it's we'll I'M don't",
      std::string("a\0b", 3),
      std::string(300, 'x'),
      "\xE2\x96\x81 the piece separator itself \xE2\x96\x81",
  };
  std::mt19937 draw(2);
  for (int i = 0; i < 40; ++i) {  // bytes that are no text at all
    std::string bytes;
    for (std::size_t n = draw() % 60; n > 0; --n) bytes += static_cast<char>(draw() & 0xFF);
    texts.push_back(bytes);
  }
  return texts;
}

class TokenizerTest : public testing::TestWithParam<const char*> {
 protected:
  TokenizerTest() : tokenizer_(tiny_model(GetParam())), oracle_(tiny_model(GetParam())) {}
  Tokenizer tokenizer_;
  Oracle oracle_;
};

INSTANTIATE_TEST_SUITE_P(Vocabularies, TokenizerTest, testing::Values("llama", "qwen2"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(TokenizerTest, EqualsLibllama) {
  EXPECT_EQ(tokenizer_.n_vocab(), oracle_.n_vocab());
  for (const std::string& text : assorted_texts()) {
    for (const bool add_bos : {false, true}) {
      for (const bool special : {false, true}) {
        EXPECT_EQ(tokenizer_.tokenize(text, add_bos, special),
                  oracle_.tokenize(text, add_bos, special))
            << testing::PrintToString(text);
      }
    }
  }
}

TEST_P(TokenizerTest, PiecesEqualLibllama) {
  for (std::size_t i = 0; i < tokenizer_.n_vocab(); ++i) {
    const Token token = static_cast<Token>(i);
    EXPECT_EQ(tokenizer_.piece(token), oracle_.piece(token, false)) << i;
    EXPECT_EQ(tokenizer_.piece(token, true), oracle_.piece(token, true)) << i;
    EXPECT_EQ(tokenizer_.is_end_of_generation(token), oracle_.is_end_of_generation(token)) << i;
  }
}

TEST_P(TokenizerTest, PiecesGiveTheTextBack) {
  const std::string separator = "\xE2\x96\x81";
  std::size_t n_compared = 0;
  for (const std::string& text : assorted_texts()) {
    Utf8Assembler check;
    check.push(text);
    check.finish();
    if (text.empty() || check.n_replaced() > 0) continue;  // what is no text cannot come back
    std::string joined = tokenizer_.detokenize(tokenizer_.tokenize(text, false, false));
    if (std::string(GetParam()) == "llama") {
      // SentencePiece puts a space before the text, and a separator in it comes back as a space.
      if (text.find(separator) != std::string::npos) continue;
      ASSERT_EQ(joined.substr(0, 1), " ");
      joined.erase(0, 1);
    }
    EXPECT_EQ(joined, text) << testing::PrintToString(text);
    ++n_compared;
  }
  EXPECT_GE(n_compared, 14u);
}

TEST_P(TokenizerTest, ControlTokensInATextStayText) {
  const std::string text = "say <|im_end|> and <|im_start|>";
  const auto as_text = tokenizer_.tokenize(text, false, false);
  const auto as_control = tokenizer_.tokenize(text, false, true);
  const auto n_control = [&](const std::vector<Token>& tokens) {
    std::size_t n = 0;
    for (const Token t : tokens)
      n += tokenizer_.piece(t).empty() && !tokenizer_.piece(t, true).empty();
    return n;
  };
  EXPECT_EQ(n_control(as_text), 0u);
  EXPECT_EQ(n_control(as_control), 2u);
  EXPECT_NE(tokenizer_.detokenize(as_text).find("<|im_end|>"), std::string::npos);
  EXPECT_EQ(tokenizer_.detokenize(as_control).find("<|im_end|>"), std::string::npos);
}

// Bounded time and memory: quadratic tokenizers take minutes here.
TEST_P(TokenizerTest, AMegabyteOfOneCharacter) {
  for (const std::string& character :
       {std::string("a"), std::string(" "), std::string("\xE4\xB8\xAD")}) {
    std::string text;
    while (text.size() < 1000000) text += character;
    const auto tokens = tokenizer_.tokenize(text, false, false);
    const std::string joined = tokenizer_.detokenize(tokens);
    EXPECT_EQ(joined.substr(joined.size() - text.size()), text);
  }
}

TEST(TokenizerTest, BeginningTokens) {
  const Tokenizer spm(tiny_model("llama")), bpe(tiny_model("qwen2"));
  EXPECT_TRUE(spm.adds_bos());
  EXPECT_EQ(spm.bos_text(), "<s>");
  EXPECT_EQ(spm.eos_text(), "</s>");
  EXPECT_EQ(spm.tokenize("x", true, false).front(), 1);
  EXPECT_EQ(spm.tokenize("", true, false), std::vector<Token>{1});
  EXPECT_FALSE(bpe.adds_bos());
  EXPECT_EQ(bpe.eos_text(), "<|endoftext|>");
  EXPECT_EQ(bpe.tokenize("x", true, false), bpe.tokenize("x", false, false));
  EXPECT_TRUE(bpe.tokenize("", true, false).empty());
}

}  // namespace
}  // namespace precis::test
