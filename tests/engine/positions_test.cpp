// positions=compact (SelKV, Eq. 7): keys that were turned are those of the same tokens read alone,
// and a text that moves as a whole answers as if it had stayed.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/session_checks.h"
#include "oracle/parity.h"
#include "support/head_rows.h"

namespace precis {
namespace {

using namespace test;

class Positions : public TinySession {
 protected:
  Positions() : TinySession(160, 24) {}
};

// Models whose first layer is condensed, and those whose rows are whole blocks of quantised types.
class FirstLayerPositions : public Positions {};
class BlockPositions : public Positions {};

std::string model_name(const testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, Positions,
                         testing::Values("llama", "llama-hd80", "qwen2", "qwen2-yarn", "qwen3",
                                         "gemma3", "gemma3-scaled"),
                         model_name);
INSTANTIATE_TEST_SUITE_P(Models, FirstLayerPositions,
                         testing::Values("llama", "llama-hd80", "qwen2", "qwen2-yarn", "qwen3"),
                         model_name);
INSTANTIATE_TEST_SUITE_P(Models, BlockPositions,
                         testing::Values("llama-hd64", "qwen3", "gemma3", "gemma3-scaled"),
                         model_name);

// In the first layer a key is its token and its position and nothing else.
TEST_P(FirstLayerPositions, KeysAreThoseOfTheKeptTokensReadAlone) {
  const Session moved = condensed(request("streaming positions=compact", "40%"));
  const FrozenLayer& layer = *moved.frozen_layer(0);
  std::vector<Token> kept;
  for (std::size_t i = 0; i < layer.n_main(0); ++i)
    kept.push_back(prompt_[static_cast<std::size_t>(layer.position(0, i))]);
  ASSERT_GT(kept.size(), 40u);
  ASSERT_LT(kept.size(), 70u);
  EXPECT_EQ(moved.next_position(), kept.size());
  Session alone(engine_);
  alone.prefill(kept);
  const std::size_t d = engine_->config().head_dim;
  for (std::size_t h = 0; h < engine_->config().n_kv_heads; ++h) {
    const HeadRows held(layer, h);
    const EntryView got = held.view();
    const EntryView wanted = alone.tail(0).head(h);
    ASSERT_EQ(got.n, wanted.n);
    float largest = 0;
    for (std::size_t i = 0; i < got.n * d; ++i)
      largest = std::max(largest, std::abs(to_float(wanted.keys[i])));
    for (std::size_t i = 0; i < got.n * d; ++i)
      ASSERT_NEAR(to_float(got.keys[i]), to_float(wanted.keys[i]), 2e-3f * largest)
          << "entry " << i / d << " channel " << i % d;
  }
}

TEST_P(Positions, ATextThatMovesAsAWholeAnswersAsBefore) {
  const std::string spec = "score=recency select=head(recent=16,sinks=0)";
  Session stayed = condensed(request(spec, "40%"));
  Session moved = condensed(request(spec + " positions=compact", "40%"));
  EXPECT_EQ(stayed.next_position(), 160u);
  EXPECT_LT(moved.next_position(), 70u);
  EXPECT_EQ(moved.kv_bytes(), stayed.kv_bytes());
  EXPECT_EQ(moved.kv_bytes_full(), stayed.kv_bytes_full());
  EXPECT_LE(nmse(continue_with(moved, more_), continue_with(stayed, more_)), 1e-5);
  EXPECT_EQ(moved.kv_bytes_full(), stayed.kv_bytes_full());
}

// Sinks do not move with the rest, so the model sees another text.
TEST_P(Positions, ATextThatMovesTogetherDoesNot) {
  Session stayed = condensed(request("streaming", "40%"));
  Session moved = condensed(request("streaming positions=compact", "40%"));
  EXPECT_GT(nmse(continue_with(moved, more_), continue_with(stayed, more_)), 1e-5);
}

TEST_P(Positions, LayerMajorEqualsCompressingAKeptCache) {
  for (const char* spec : {"selkv positions=compact", "h2o positions=compact",
                           "selkv(mode=global) positions=compact layers=global",
                           "adakv positions=compact", "merging positions=compact"}) {
    SCOPED_TRACE(spec);
    const CondenseRequest wanted = request(spec, "50%");
    Session later(engine_);
    later.prefill(prompt_, wanted.method.observation(prompt_.size()));
    Session fork = later.fork();
    later.compress(wanted);
    Session at_once = condensed(wanted);
    EXPECT_EQ(difference(later, at_once), "");
    // The text goes on behind the longest list.
    std::size_t longest = 0;
    for (const std::size_t il : engine_->compressible_indices())
      for (std::size_t h = 0; h < engine_->config().n_kv_heads; ++h)
        longest = std::max(longest, at_once.frozen_layer(il)->n_entries(h));
    EXPECT_EQ(at_once.next_position(), longest);
    EXPECT_TRUE(same_bits(continue_with(later, more_), continue_with(at_once, more_)));
    EXPECT_EQ(fork.next_position(), 160u);
  }
}

TEST_P(Positions, KeepingEverythingMovesNothing) {
  Session plain = condensed(request("full", "100%"));
  Session moved = condensed(request("selkv positions=compact", "100%"));
  EXPECT_EQ(difference(plain, moved), "");
}

TEST_P(BlockPositions, RowsOfOtherTypesAreTurnedBeforeTheyArePacked) {
  const std::string spec = "score=recency select=head(recent=16,sinks=0)";
  CondenseRequest stays = request(spec, "40%");
  CondenseRequest moves = request(spec + " positions=compact", "40%");
  stays.rows = moves.rows = {RowType::kQ8_0, RowType::kQ8_0};
  Session stayed = condensed(stays), moved = condensed(moves);
  EXPECT_LE(nmse(continue_with(moved, more_), continue_with(stayed, more_)), 1e-3);
}

}  // namespace
}  // namespace precis
