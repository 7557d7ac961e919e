// Sessions on tiny models: condensing is exact bookkeeping, whatever the method.
#include "engine/session.h"

#include <gtest/gtest.h>

#include <cmath>

#include "engine/session_checks.h"
#include "oracle/parity.h"
#include "support/head_rows.h"

namespace precis::test {
namespace {

constexpr std::size_t kPrompt = 230;
constexpr std::size_t kMore = 24;

// gemma3 mixes sliding and global layers, llama has groups of 2, qwen2 one KV head and a group
// of 7.
class SessionTest : public TinySession {
 protected:
  SessionTest() : TinySession(kPrompt, kMore) {}
};

INSTANTIATE_TEST_SUITE_P(Models, SessionTest, testing::Values("llama", "gemma3", "qwen2"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(SessionTest, LayerMajorEqualsCompressingAKeptCache) {
  std::vector<std::string> specs = engine_presets();
  ASSERT_GE(specs.size(), 5u);
  for (const char* spec : {"selkv select=head", "selkv select=shared", "selkv bias=none",
                           "selkv merge=none bias=none"}) {
    specs.push_back(spec);
  }
  for (const std::string& spec : specs) {
    const CondenseRequest req = request(spec, "25%");
    Session layer_major(engine_), post_hoc(engine_);
    const CompressionReport one = layer_major.condense(prompt_, req);
    post_hoc.prefill(prompt_, req.method.observation(kPrompt));
    EXPECT_TRUE(same_bits(post_hoc.last_logits(), layer_major.last_logits())) << spec;
    const CompressionReport two = post_hoc.compress(req);

    EXPECT_EQ(difference(layer_major, post_hoc), "") << spec;
    EXPECT_EQ(one.kept_bytes, two.kept_bytes) << spec;
    EXPECT_EQ(one.entries, two.entries) << spec;
    EXPECT_EQ(one.n_routed, two.n_routed) << spec;
    EXPECT_EQ(one.skipped, two.skipped) << spec;
    EXPECT_TRUE(same_bits(continue_with(layer_major, more_), continue_with(post_hoc, more_)))
        << spec;
  }
}

// A method must do something, or the equalities above say little.
TEST_P(SessionTest, CondensingChangesTheAnswerAndFreesMemory) {
  Session full(engine_);
  full.prefill(prompt_);
  const std::size_t dense_bytes = full.kv_bytes();
  const auto reference = continue_with(full, more_);
  for (const std::string& spec : engine_presets()) {
    if (spec == "full") continue;
    Session session = condensed(request(spec, "25%"));
    EXPECT_LT(session.kv_bytes(), dense_bytes) << spec;
    EXPECT_EQ(session.kv_bytes_full(), dense_bytes) << spec;
    const double error = nmse(continue_with(session, more_), reference);
    EXPECT_GT(error, 1e-6) << spec;
    EXPECT_LT(error, 2.0) << spec;
  }
}

TEST_P(SessionTest, KeepingEverythingEqualsFullBitForBit) {
  Session full(engine_);
  full.condense(prompt_, request("full", "100%"));
  const auto last = copy(full.last_logits());
  const auto reference = continue_with(full, more_);
  for (const std::string& spec : engine_presets()) {
    Session session(engine_);
    const CompressionReport report = session.condense(prompt_, request(spec, "100%"));
    EXPECT_TRUE(same_bits(session.last_logits(), last)) << spec;
    EXPECT_TRUE(same_bits(continue_with(session, more_), reference)) << spec;
    EXPECT_EQ(report.kept_bytes, report.dense_bytes) << spec;
    EXPECT_TRUE(report.skipped.has_value() || spec == "full") << spec;
  }
}

// More threads than KV heads and than most machines' cores, and an odd number. On a busy machine
// every node of a graph waits for the slowest thread, so that more of this takes minutes.
TEST_P(SessionTest, AnyNumberOfThreadsGivesTheSameBits) {
  const auto few = std::span(more_).first(4);
  const std::vector<std::string> specs = engine_presets();
  std::vector<Session> reference;
  std::vector<std::vector<float>> last, continued;
  for (const std::string& spec : specs) {
    Session& one = reference.emplace_back(load(1));
    one.condense(prompt_, request(spec, "30%"));
    last.push_back(copy(one.last_logits()));
    continued.push_back(continue_with(one, few));
  }
  // Three threads on two cores wait for each other in every graph, so one method is enough there.
  const auto two = load(2), three = load(3);
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const std::string& spec = specs[i];
    Session other(spec == "selkv" ? three : two);
    other.condense(prompt_, request(spec, "30%"));
    EXPECT_TRUE(same_bits(other.last_logits(), last[i])) << spec;
    EXPECT_TRUE(same_bits(continue_with(other, few), continued[i])) << spec;
    EXPECT_EQ(difference(reference[i], other), "") << spec;
  }
}

TEST_P(SessionTest, SeedDecidesRandomMethodsOnly) {
  const Session a = condensed(request("random", "25%", 1)),
                b = condensed(request("random", "25%", 2));
  EXPECT_NE(difference(a, b), "");
  const Session c = condensed(request("selkv", "25%", 1)),
                d = condensed(request("selkv", "25%", 2));
  EXPECT_EQ(difference(c, d), "");
}

TEST_P(SessionTest, ForksContinueIndependently) {
  Session original = condensed(request("selkv", "25%"));
  const auto other_tokens = random_tokens(kMore, engine_->config().n_vocab, 99);
  Session unforked = condensed(request("selkv", "25%"));
  const auto reference = continue_with(unforked, more_);

  Session first = original.fork(), second = original.fork();
  EXPECT_EQ(first.frozen_layer(engine_->compressible_indices()[0]),
            original.frozen_layer(engine_->compressible_indices()[0]));
  EXPECT_TRUE(same_bits(first.last_logits(), original.last_logits()));
  // Interleaved, so that shared working memory would show.
  std::vector<float> mine, theirs;
  for (std::size_t i = 0; i < kMore; i += 4) {
    const auto a = first.extend(std::span(other_tokens).subspan(i, 4), 4);
    mine.insert(mine.end(), a.begin(), a.end());
    const auto b = second.extend(std::span(more_).subspan(i, 4), 4);
    theirs.insert(theirs.end(), b.begin(), b.end());
  }
  EXPECT_LE(nmse(theirs, reference), 1e-7);  // other pieces, other sums
  EXPECT_GT(nmse(mine, reference), 1e-3);
  EXPECT_EQ(original.next_position(), kPrompt);
  EXPECT_TRUE(same_bits(continue_with(original, more_), reference));
}

TEST_P(SessionTest, AForkOutlivesItsOrigin) {
  auto original = std::make_unique<Session>(condensed(request("selkv", "25%")));
  Session fork = original->fork();
  const auto reference = continue_with(*original, more_);
  original.reset();
  EXPECT_TRUE(same_bits(continue_with(fork, more_), reference));
}

TEST_P(SessionTest, ResetStartsOver) {
  Session session = condensed(request("selkv", "25%"));
  const auto reference = continue_with(session, more_);
  session.reset();
  EXPECT_EQ(session.next_position(), 0u);
  EXPECT_EQ(session.kv_bytes(), 0u);
  session.condense(prompt_, request("selkv", "25%"));
  EXPECT_EQ(session.next_position(), kPrompt);
  EXPECT_TRUE(same_bits(continue_with(session, more_), reference));
  session.reset();
  session.extend(prompt_);  // token-major after layer-major
  EXPECT_EQ(session.next_position(), kPrompt);
}

TEST_P(SessionTest, ExtendInOnesEqualsAllAtOnce) {
  const Session start = condensed(request("selkv", "25%"));
  Session whole = start.fork(), ones = start.fork();
  const auto reference = copy(whole.extend(more_, kMore));
  std::vector<float> logits;
  for (std::size_t i = 0; i < kMore; ++i) {
    const auto row = ones.extend({&more_[i], 1});
    logits.insert(logits.end(), row.begin(), row.end());
    EXPECT_EQ(ones.next_position(), kPrompt + i + 1);
  }
  EXPECT_LE(nmse(logits, reference), 1e-7);
  EXPECT_TRUE(same_bits(ones.last_logits(), std::span(logits).last(engine_->config().n_vocab)));
}

TEST_P(SessionTest, TokenMajorAndLayerMajorPrefillAgree) {
  Session token_major(engine_), layer_major(engine_);
  const auto expected = copy(token_major.extend(prompt_));
  layer_major.prefill(prompt_);
  EXPECT_LE(nmse(layer_major.last_logits(), expected), 1e-7);
  EXPECT_LE(nmse(continue_with(layer_major, more_), continue_with(token_major, more_)), 1e-7);
  EXPECT_EQ(layer_major.next_position(), token_major.next_position());
}

TEST_P(SessionTest, PositionsStayTrue) {
  for (const std::string& spec : engine_presets()) {
    Session session = condensed(request(spec, "25%"));
    EXPECT_EQ(session.next_position(), kPrompt) << spec;
    for (const std::size_t il : engine_->compressible_indices()) {
      const FrozenLayer* layer = session.frozen_layer(il);
      ASSERT_NE(layer, nullptr) << spec;
      for (std::size_t head = 0; head < layer->shape().n_kv_heads; ++head) {
        std::int32_t previous = -1;
        for (std::size_t i = 0; i < layer->n_main(head); ++i) {
          const std::int32_t position = layer->position(head, i);
          ASSERT_GT(position, previous) << spec;
          ASSERT_LT(position, static_cast<std::int32_t>(kPrompt)) << spec;
          previous = position;
        }
        EXPECT_EQ(previous, static_cast<std::int32_t>(kPrompt) - 1) << spec << ": last token kept";
      }
      EXPECT_EQ(session.tail(il).first_position(), static_cast<std::int32_t>(kPrompt)) << spec;
    }
    session.extend(more_);
    EXPECT_EQ(session.next_position(), kPrompt + kMore) << spec;
  }
}

// A kept entry holds the very key that the prefill computed for its position.
TEST_P(SessionTest, KeptKeysAreThePrefillsOwn) {
  Session dense(engine_);
  dense.prefill(prompt_);
  const Session kept = condensed(request("selkv", "25%"));
  const std::size_t dim = engine_->config().head_dim;
  for (const std::size_t il : engine_->compressible_indices()) {
    const FrozenLayer& layer = *kept.frozen_layer(il);
    for (std::size_t head = 0; head < layer.shape().n_kv_heads; ++head) {
      const test::HeadRows rows(layer, head);
      for (std::size_t i = 0; i < layer.n_main(head); ++i) {
        const auto row = static_cast<std::size_t>(layer.position(head, i));
        ASSERT_TRUE(
            same_bits(rows.keys.data() + i * dim, dense.tail(il).head(head).keys + row * dim, dim));
      }
    }
  }
}

TEST_P(SessionTest, DecodingFarBeyondTheBudget) {
  const ModelConfig& config = engine_->config();
  Session session = condensed(request("selkv", "48"));
  std::size_t condensed_bytes = 0, n_global = engine_->compressible_indices().size();
  for (const std::size_t il : engine_->compressible_indices()) {
    condensed_bytes += session.frozen_layer(il)->bytes();
  }
  const std::size_t row_bytes = config.n_kv_heads * config.head_dim * 2 * 2;
  EXPECT_LE(condensed_bytes, 48 * n_global * row_bytes);
  const std::size_t before = session.kv_bytes();
  Token token = 5;
  constexpr std::size_t kSteps = 4 * 48;
  for (std::size_t i = 0; i < kSteps; ++i) {
    const auto logits = session.extend({&token, 1});
    for (const float x : logits) ASSERT_TRUE(std::isfinite(x));
    token = static_cast<Token>(argmax(logits));
  }
  EXPECT_EQ(session.next_position(), kPrompt + kSteps);
  // Global layers grow by what was generated; sliding ones hold no more than before and what one
  // step adds.
  const std::size_t n_sliding = config.n_layers - n_global;
  EXPECT_GE(session.kv_bytes(), before + kSteps * n_global * row_bytes);
  EXPECT_LE(session.kv_bytes(), before + (kSteps * n_global + n_sliding) * row_bytes);
  EXPECT_LT(session.kv_bytes(), session.kv_bytes_full());
}

}  // namespace
}  // namespace precis::test
