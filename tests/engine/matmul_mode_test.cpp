// What the way of multiplying may change, and what not.
#include <gtest/gtest.h>

#include "engine/session.h"
#include "engine/session_checks.h"
#include "support/test_models.h"

namespace precis::test {
namespace {

std::shared_ptr<const Engine> load(MatmulMode mode) {
  return Engine::load(tiny_model("llama"), {.n_threads = 1, .matmul = mode});
}

TEST(MatmulMode, SingleTokensHaveTheSameBitsInEveryMode) {
  std::vector<std::vector<float>> logits;
  for (const MatmulMode mode : {MatmulMode::kGgml, MatmulMode::kSgemm, MatmulMode::kAuto}) {
    const auto engine = load(mode);
    Session session(engine);
    for (const Token token : random_tokens(40, engine->config().n_vocab, 9))
      session.extend({&token, 1});
    logits.emplace_back(session.last_logits().begin(), session.last_logits().end());
  }
  EXPECT_TRUE(same_bits(std::span<const float>(logits[1]), std::span<const float>(logits[0])));
  EXPECT_TRUE(same_bits(std::span<const float>(logits[2]), std::span<const float>(logits[0])));
}

// Chunks, pieces and batches of any size: a sum of the f32 product has one order.
TEST(MatmulMode, F32ProductHasTheSameBitsInPiecesOfAnySize) {
  const auto engine = load(MatmulMode::kSgemm);
  const auto tokens = random_tokens(200, engine->config().n_vocab, 9);
  Session whole(engine);
  // Two logits, because a single row is always ggml's.
  whole.extend(tokens, 2);
  const std::vector<float> expected(whole.last_logits().begin(), whole.last_logits().end());
  // More than a tile of attention each, which sums in another order for fewer tokens.
  for (const std::size_t piece : {40, 60, 90}) {
    Session session(engine);
    std::size_t at = 0;
    for (; at + 2 * piece <= tokens.size(); at += piece)
      session.extend(std::span(tokens).subspan(at, piece));
    session.extend(std::span(tokens).subspan(at), 2);
    EXPECT_TRUE(same_bits(session.last_logits(), std::span<const float>(expected))) << piece;
  }
}

TEST(MatmulMode, IsReported) {
  EXPECT_EQ(load(MatmulMode::kGgml)->model().matmul_report().mode, MatmulMode::kGgml);
  const auto engine = load(MatmulMode::kSgemm);
  const MatmulReport& report = engine->model().matmul_report();
  EXPECT_EQ(report.mode, MatmulMode::kSgemm);
  ASSERT_FALSE(report.kinds.empty());
  for (const MatmulKind& kind : report.kinds) EXPECT_EQ(kind.min_tokens, 2u);
}

}  // namespace
}  // namespace precis::test
