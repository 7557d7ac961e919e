// The tokenizer against libllama on a real vocabulary and a long real text.
#include <gtest/gtest.h>

#include "model/tokenizer.h"
#include "oracle/libllama_oracle.h"
#include "support/test_models.h"

namespace precis::test {
namespace {

class RealModelTokenizer : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Files, RealModelTokenizer, testing::Values(kSmolLm2, kGemma3, kQwen2),
                         [](const auto& info) { return std::string(info.param).substr(0, 4); });

TEST_P(RealModelTokenizer, EqualsLibllamaOnALongText) {
  const std::string path = real_model(GetParam());
  PRECIS_SKIP_IF_ABSENT(path);
  const auto text = sample_text();
  if (!text) PRECIS_END_WITHOUT("this system has no /usr/share/common-licenses/GPL-3");
  const Tokenizer tokenizer(path);
  const Oracle oracle(path, {.n_ctx = 64});
  for (const bool add_bos : {false, true}) {
    EXPECT_EQ(tokenizer.tokenize(*text, add_bos, false), oracle.tokenize(*text, add_bos, false));
  }
  EXPECT_EQ(tokenizer.detokenize(tokenizer.tokenize(*text, false, false)), *text);
}

}  // namespace
}  // namespace precis::test
