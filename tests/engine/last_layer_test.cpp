// In the last layer only the tokens whose results are wanted attend; nothing may show it.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/session.h"
#include "engine/session_checks.h"
#include "support/test_models.h"

namespace precis::test {
namespace {

class LastLayer : public testing::TestWithParam<const char*> {
 protected:
  // The f32 product: its bits do not depend on how many tokens are computed together.
  std::shared_ptr<const Engine> engine_ =
      Engine::load(tiny_model(GetParam()), {.n_threads = 1, .matmul = MatmulMode::kSgemm});
  std::vector<Token> tokens_ = random_tokens(300, engine_->config().n_vocab, 4);
};

TEST_P(LastLayer, NothingDependsOnHowManyQueriesAreWatched) {
  Session all(engine_);
  all.prefill(tokens_, {SIZE_MAX, 32});
  const std::size_t last = engine_->compressible_indices().back();
  const std::size_t d = engine_->config().head_dim;
  Session none(engine_);
  none.prefill(tokens_);
  for (const Observation watched :
       {Observation{0, 0}, {1, 0}, {20, 0}, {70, 0}, {299, 0}, {0, 32}, {20, 32}}) {
    const std::size_t n_watched = watched.n_queries;
    Session some(engine_);
    some.prefill(tokens_, watched);
    ASSERT_TRUE(same_bits(some.last_logits(), none.last_logits())) << n_watched;
    ASSERT_TRUE(same_bits(some.last_logits(), all.last_logits())) << n_watched;
    for (std::size_t il = 0; il < engine_->config().n_layers; ++il)
      for (std::size_t h = 0; h < engine_->config().n_kv_heads; ++h) {
        const EntryView a = some.tail(il).head(h), b = all.tail(il).head(h);
        ASSERT_EQ(a.n, b.n);
        ASSERT_TRUE(same_bits(a.keys, b.keys, a.n * d) && same_bits(a.values, b.values, a.n * d))
            << n_watched << ", layer " << il;
      }
    const ObservedQueries& q = some.observed(last);
    const ObservedQueries& every = all.observed(last);
    if (watched.block > 0) {
      ASSERT_EQ(q.block_attention.size(), every.block_attention.size());
      EXPECT_TRUE(same_bits(q.block_attention.data(), every.block_attention.data(),
                            q.block_attention.size()));
    }
    if (n_watched == 0) continue;
    ASSERT_EQ(q.n_tokens, n_watched);
    for (std::size_t h = 0; h < q.n_heads; ++h) {
      const std::size_t at = h * every.n_tokens + every.n_tokens - n_watched;
      EXPECT_TRUE(same_bits(q.queries.data() + h * n_watched * d, every.queries.data() + at * d,
                            n_watched * d))
          << n_watched << ", head " << h;
      EXPECT_TRUE(
          same_bits(q.log_sum_exp.data() + h * n_watched, every.log_sum_exp.data() + at, n_watched))
          << n_watched << ", head " << h;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, LastLayer,
                         testing::Values("llama", "llama-hd80", "qwen2", "qwen3", "gemma3"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace precis::test
