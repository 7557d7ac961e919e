#include "tasks/sample_fit.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "tasks/fake_codecs.h"

namespace precis {
namespace {

// `size` blocks of `block` words, then filler.
SampleDraft blocks(std::size_t block) {
  SampleDraft out;
  out.context = [block](std::size_t size, std::size_t filler) {
    std::string text;
    for (std::size_t i = 0; i < size * block; ++i) text += "w ";
    return text + "end" + filler_line(filler);
  };
  out.question.text = "One two three?";
  out.question.answer_prefix = "Well:";
  return out;
}

TaskRule rule_of(std::size_t max_new_tokens) {
  TaskRule rule;
  rule.max_new_tokens = max_new_tokens;
  return rule;
}

// Words codec: 1 (end) + 3 + 1 + 20 and the blocks.
TEST(SampleFit, CountsContextQuestionPrefixAndAnswer) {
  const TokenCodec codec = test::words_codec();
  const FittedSample fitted = fit_sample(blocks(1), rule_of(20), 99, codec);  // window of one
  ASSERT_TRUE(fitted.fits);
  EXPECT_EQ(fitted.least_length, 25u);
  EXPECT_EQ(codec.count(fitted.sample.context), 99u - 24u);
  EXPECT_EQ(fitted.sample.length, 99u);
  EXPECT_EQ(fitted.sample.rule.max_new_tokens, 20u);
  EXPECT_EQ(fitted.sample.questions.at(0).text, "One two three?");
}

TEST(SampleFit, SaysWhatIsTooShort) {
  const TokenCodec codec = test::words_codec();
  EXPECT_TRUE(fit_sample(blocks(1), rule_of(20), 25, codec).fits);
  const FittedSample fitted = fit_sample(blocks(1), rule_of(20), 24, codec);
  EXPECT_FALSE(fitted.fits);
  EXPECT_EQ(fitted.least_length, 25u);
  SampleDraft larger = blocks(10);
  larger.least = 3;
  EXPECT_EQ(fit_sample(larger, rule_of(20), 54, codec).least_length, 55u);
}

// Blocks of 70 words: the rest is filler, of less than a block.
TEST(SampleFit, FillsWhatCoarseUnitsLeave) {
  const TokenCodec codec = test::words_codec();
  for (std::size_t length = 300; length < 900; length += 7) {
    const FittedSample fitted = fit_sample(blocks(70), rule_of(20), length, codec);
    const std::size_t n = codec.count(fitted.sample.context) + 24;
    EXPECT_LE(n, length);
    EXPECT_GE(n, length - length / 100);
    std::istringstream in(fitted.sample.context);
    std::size_t n_units = 0;
    for (std::string word; in >> word && word == "w";) ++n_units;
    EXPECT_EQ(n_units % 70, 0u);
    EXPECT_LT(n - 25 - n_units, 70u);
  }
}

TEST(SampleFit, StopsAtTheMostUnits) {
  const TokenCodec codec = test::words_codec();
  SampleDraft draft = blocks(10);
  draft.most = 7;
  const FittedSample fitted = fit_sample(draft, rule_of(20), 1000, codec);
  EXPECT_GE(codec.count(fitted.sample.context) + 24, 990u);  // all the rest is filler
  EXPECT_EQ(fitted.sample.context.find("w end"), 2u * 70 - 2);
}

TEST(SampleFit, FillerIsALineOfShortWords) {
  EXPECT_EQ(filler_line(0), "");
  EXPECT_EQ(filler_line(1).substr(0, 2), "\n\n");
  std::istringstream in(filler_line(100));
  std::size_t n = 0;
  for (std::string word; in >> word; ++n) EXPECT_LE(word.size(), 5u);  // with its mark
  EXPECT_EQ(n, 100u);
}

}  // namespace
}  // namespace precis
