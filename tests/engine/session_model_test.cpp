// The session's exactness on a real quantised model, where kernels differ from those of f32 models.
#include <gtest/gtest.h>

#include "engine/session_checks.h"
#include "oracle/parity.h"

namespace precis::test {
namespace {

constexpr std::size_t kPrompt = 700;
constexpr std::size_t kMore = 20;

class RealModelSession : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string path = real_model(GetParam());
    PRECIS_SKIP_IF_ABSENT(path);
    const auto text = sample_text();
    if (!text) PRECIS_END_WITHOUT("this system has no /usr/share/common-licenses/GPL-3");
    // Fixed, because measurements of two engines may decide differently.
    engine_ = Engine::load(
        path, {.n_threads = 2, .matmul = MatmulMode::kSgemm, .weights = WeightsMode::kFile});
    tokens_ = engine_->tokenizer().tokenize(*text, true, false);
  }
  std::span<const Token> prompt() const { return std::span(tokens_).first(kPrompt); }
  std::span<const Token> more() const { return std::span(tokens_).subspan(kPrompt, kMore); }

  std::shared_ptr<const Engine> engine_;
  std::vector<Token> tokens_;
};

INSTANTIATE_TEST_SUITE_P(Files, RealModelSession, testing::Values(kSmolLm2, kGemma3),
                         [](const auto& info) { return std::string(info.param).substr(0, 4); });

// Tiny models are asked for every way through the engine (session_test.cpp); here for each kind of
// observation, since a prompt takes seconds: all queries; blocks, and layers and biases that wait;
// W_O; the prompt repeated; queries that are held out; queries that are moved, and fitted values.
TEST_P(RealModelSession, LayerMajorEqualsCompressingAKeptCache) {
  for (const std::string spec : {"h2o", "selkv(mode=global) layers=global", "criticalkv",
                                 "kvzip(recent=16)", "reskv-mass", "match"}) {
    const CondenseRequest req = request(spec, "25%");
    Session layer_major(engine_), post_hoc(engine_);
    layer_major.condense(prompt(), req);
    post_hoc.prefill(prompt(), req.method.observation(kPrompt));
    post_hoc.compress(req);
    EXPECT_EQ(difference(layer_major, post_hoc), "") << spec;
    EXPECT_TRUE(same_bits(continue_with(layer_major, more()), continue_with(post_hoc, more())))
        << spec;
  }
}

TEST_P(RealModelSession, KeepingEverythingEqualsFullBitForBit) {
  Session full(engine_);
  full.condense(prompt(), request("full", "100%"));
  const auto reference = continue_with(full, more());
  for (const std::string spec : {"snapkv", "selkv", "kvzip(recent=16)"}) {
    Session session(engine_);
    session.condense(prompt(), request(spec, "100%"));
    EXPECT_TRUE(same_bits(continue_with(session, more()), reference)) << spec;
  }
}

TEST_P(RealModelSession, AnyNumberOfThreadsGivesTheSameBits) {
  const CondenseRequest req = request("selkv", "25%");
  Session two(engine_);
  two.condense(prompt(), req);
  Session reference = two.fork();
  const auto logits = continue_with(reference, more());
  for (const std::size_t n_threads : {1, 3}) {
    Session other(Engine::load(
        real_model(GetParam()),
        {.n_threads = n_threads, .matmul = MatmulMode::kSgemm, .weights = WeightsMode::kFile}));
    other.condense(prompt(), req);
    EXPECT_EQ(difference(two, other), "") << n_threads << " threads";
    EXPECT_TRUE(same_bits(continue_with(other, more()), logits)) << n_threads << " threads";
  }
}

}  // namespace
}  // namespace precis::test
