// Converted weights on a real model most of whose matrices are q5_0.
#include <gtest/gtest.h>

#include "engine/batch.h"
#include "engine/session_checks.h"
#include "oracle/parity.h"

namespace precis::test {
namespace {

class RealModelWeights : public testing::Test {
 protected:
  void SetUp() override {
    path_ = real_model(kQwen2);
    PRECIS_SKIP_IF_ABSENT(path_);
    text_ = sample_text();
    if (!text_) PRECIS_END_WITHOUT("this system has no /usr/share/common-licenses/GPL-3");
  }
  std::shared_ptr<const Engine> load(WeightsMode mode) const {
    return Engine::load(path_, {.n_threads = 1, .matmul = MatmulMode::kSgemm, .weights = mode});
  }
  std::string path_;
  std::optional<std::string> text_;
};

// Prompts have the same bits; single tokens are ggml's, which rounds activations for both forms
// alike and may at most sum in another order.
TEST_F(RealModelWeights, ConvertedAnswersAreThoseOfTheFile) {
  const auto stored = load(WeightsMode::kFile);
  const auto converted = load(WeightsMode::kQ8_0);
  const WeightsReport& report = converted->model().weights_report();
  ASSERT_EQ(report.forms.size(), 1u);
  EXPECT_EQ(report.forms[0].type, "q5_0");
  EXPECT_EQ(report.forms[0].n_matrices, 132u);
  EXPECT_EQ(report.forms[0].file_bytes, 173150208u);
  EXPECT_EQ(report.added_bytes(), 173150208u / 22 * 12);
  const auto tokens = stored->tokenizer().tokenize(*text_, true, false);
  const std::span<const Token> prompt = std::span(tokens).first(96);
  Session a(stored), b(converted);
  a.prefill(prompt);
  b.prefill(prompt);
  ASSERT_EQ(difference(a, b), "");
  double kl = 0;
  for (std::size_t i = 0; i < 24; ++i) {
    a.extend({&tokens[96 + i], 1});
    b.extend({&tokens[96 + i], 1});
    kl += kl_divergence(a.last_logits(), b.last_logits());
  }
  EXPECT_LT(kl / 24, 1e-6);
}

TEST_F(RealModelWeights, AutoMeasures) {
  const auto engine = load(WeightsMode::kAuto);
  const WeightsReport& report = engine->model().weights_report();
  EXPECT_EQ(report.mode, WeightsMode::kAuto);
  ASSERT_EQ(report.forms.size(), 1u);
  EXPECT_GT(report.forms[0].speedup, 0.2);
  EXPECT_LT(report.forms[0].speedup, 5.0);
  EXPECT_EQ(report.forms[0].is_converted, report.forms[0].speedup >= kLeastSpeedup);
}

}  // namespace
}  // namespace precis::test
