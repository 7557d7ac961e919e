// Precis against libllama on real quantised models: 512 tokens of the GPL, and greedy answers.
//
// The reference is libllama with an f16 cache and flash attention, because that is what people
// compare with.
#include <gtest/gtest.h>

#include <cstdio>

#include "oracle/parity.h"
#include "support/test_models.h"

namespace precis::test {
namespace {

class RealModelParity : public testing::TestWithParam<const char*> {};

TEST_P(RealModelParity, FullCacheFollowsLibllama) {
  const std::string path = real_model(GetParam());
  PRECIS_SKIP_IF_ABSENT(path);
  const auto text = sample_text();
  if (!text) GTEST_SKIP() << "this system has no /usr/share/common-licenses/GPL-3";
  const auto engine = Engine::load(path, {});
  Oracle oracle(path);
  std::vector<Token> tokens = engine->tokenizer().tokenize(*text, true, false);
  ASSERT_GE(tokens.size(), 512u);
  tokens.resize(512);

  std::puts(parity_header().c_str());
  for (const std::size_t n_prefill : {0, 384}) {
    const Parity parity =
        measure_parity(engine, oracle, tokens, n_prefill, n_prefill == 0 ? 64 : 0);
    std::puts(parity_row(GetParam(), parity).c_str());
    EXPECT_LE(parity.mean_kl, 2e-3);
    EXPECT_GE(parity.top1, 0.98);
    if (parity.gap) {
      EXPECT_LE(*parity.gap, kNearTie) << "after " << parity.n_agreed << " equal tokens";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Files, RealModelParity, testing::Values(kSmolLm2, kGemma3, kQwen2),
                         [](const auto& info) { return std::string(info.param).substr(0, 4); });

}  // namespace
}  // namespace precis::test
