// Batched decoding on real quantised models, whose matrices are of many types: bits equal those of
// solo runs.
#include <gtest/gtest.h>

#include "engine/batch.h"
#include "engine/session_checks.h"
#include "oracle/parity.h"

namespace precis::test {
namespace {

struct BatchCase {
  const char* file;
  WeightsMode weights;
};

class RealModelBatch : public testing::TestWithParam<BatchCase> {
 protected:
  void SetUp() override {
    const std::string path = real_model(GetParam().file);
    PRECIS_SKIP_IF_ABSENT(path);
    const auto text = sample_text();
    if (!text) PRECIS_END_WITHOUT("this system has no /usr/share/common-licenses/GPL-3");
    engine_ = Engine::load(path, {.n_threads = 1, .weights = GetParam().weights});
    tokens_ = engine_->tokenizer().tokenize(*text, true, false);
  }
  std::shared_ptr<const Engine> engine_;
  std::vector<Token> tokens_;
};

INSTANTIATE_TEST_SUITE_P(Files, RealModelBatch,
                         testing::Values(BatchCase{kSmolLm2, WeightsMode::kFile},
                                         BatchCase{kGemma3, WeightsMode::kFile},
                                         BatchCase{kQwen2, WeightsMode::kFile},
                                         BatchCase{kQwen2, WeightsMode::kQ8_0}),
                         [](const auto& info) {
                           return std::string(info.param.file).substr(0, 4) + "_" +
                                  weights_mode_name(info.param.weights);
                         });

TEST_P(RealModelBatch, GreedyAnswersEqualSoloRunsBitForBit) {
  constexpr std::size_t kSessions = 9;
  std::vector<Session> batched, alone;
  for (std::size_t i = 0; i < kSessions; ++i) {
    Session session(engine_);
    session.condense(std::span(tokens_).subspan(50 * i, 60 + 10 * i), request("selkv", "50%"));
    alone.push_back(session.fork());
    batched.push_back(std::move(session));
  }
  BatchDecoder decoder(engine_);
  // Sizes at which ggml changes its kernels, and all between.
  for (const std::size_t n : {9, 8, 7, 4, 3, 2, 1, 8, 9}) {
    std::vector<BatchEntry> entries;
    for (std::size_t i = 0; i < n; ++i)
      entries.push_back({&batched[i], static_cast<Token>(argmax(batched[i].last_logits()))});
    decoder.step(entries);
    for (std::size_t i = 0; i < n; ++i) {
      const auto token = static_cast<Token>(argmax(alone[i].last_logits()));
      ASSERT_EQ(token, entries[i].token) << n << " sessions, session " << i;
      alone[i].extend({&token, 1});
      ASSERT_TRUE(same_bits(batched[i].last_logits(), alone[i].last_logits()))
          << n << " sessions, session " << i;
      ASSERT_EQ(difference(batched[i], alone[i]), "") << n << " sessions, session " << i;
    }
  }
}

}  // namespace
}  // namespace precis::test
