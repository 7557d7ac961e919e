// Sessions whose cache is quantised: close to f16, exactly accounted, true to the session's rules.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/session_checks.h"
#include "eval/divergence.h"

namespace precis::test {
namespace {

constexpr std::size_t kPrompt = 230;
constexpr std::size_t kMore = 150;  // long enough for the tail to age
constexpr RowTypes kF16{};
constexpr RowTypes kQ8{RowType::kQ8_0, RowType::kQ8_0};
constexpr RowTypes kQ4{RowType::kQ4, RowType::kQ4};
constexpr RowTypes kMixed{RowType::kQ8_0, RowType::kQ4};
constexpr RowTypes kValuesOnly{RowType::kF16, RowType::kQ8_0};

CondenseRequest with(const std::string& spec, const std::string& keep, const RowTypes& rows) {
  CondenseRequest r = request(spec, keep);
  r.rows = rows;
  return r;
}

class RowTypesTest : public TinySession {
 protected:
  RowTypesTest() : TinySession(kPrompt, kMore) {}
  // Mean KL to the f16 cache over tokens read one by one.
  double divergence(const std::string& spec, const std::string& keep, const RowTypes& rows) const {
    Session exact = condensed(with(spec, keep, kF16));
    Session rounded = condensed(with(spec, keep, rows));
    double sum = 0;
    for (const Token& token : more_) {
      const std::vector<float> reference = copy(exact.extend({&token, 1}));
      sum += compare_logits(reference, rounded.extend({&token, 1})).kl;
    }
    return sum / static_cast<double>(more_.size());
  }
};

// Groups of 3, 7 and 4 with sliding layers; head sizes that are multiples of 32.
INSTANTIATE_TEST_SUITE_P(Models, RowTypesTest,
                         testing::Values("llama-hd64", "qwen2-hd32", "gemma3"),
                         [](const auto& info) {
                           const std::string name = info.param;
                           return name.substr(0, name.find('-'));
                         });

TEST_P(RowTypesTest, FinerTypesAreCloser) {
  for (const auto& [spec, keep] : {std::pair{"full", "100%"}, std::pair{"selkv", "40%"}}) {
    const double q8 = divergence(spec, keep, kQ8);
    const double q4 = divergence(spec, keep, kQ4);
    const double mixed = divergence(spec, keep, kMixed);
    EXPECT_GT(q8, 0) << "the cache was not quantised";
    // Attention of the tiny models is sharper than a trained one's.
    EXPECT_LT(q8, 0.03) << spec;
    EXPECT_LT(q4, 0.6) << spec;
    EXPECT_LT(3 * q8, q4) << spec;
    EXPECT_LT(mixed, q4 * 1.5) << spec;
  }
}

TEST_P(RowTypesTest, BytesAreThoseOfTheRows) {
  const ModelConfig& c = engine_->config();
  for (const RowTypes& rows : {kF16, kQ8, kQ4, kMixed, kValuesOnly}) {
    const CondenseRequest req = with("full", "100%", rows);
    Session session(engine_);
    const CompressionReport report = session.condense(prompt_, req);
    std::size_t expected = 0;
    for (std::size_t i = 0; i < engine_->compressible_indices().size(); ++i)
      expected += c.n_kv_heads * row_bytes({report.key_types[i], rows.values}, c.head_dim, kPrompt);
    EXPECT_EQ(report.kept_bytes, expected);
    // Live buffers of the entries that came later: aged ones in their types, the newest in f16.
    const std::size_t before = session.kv_bytes();
    for (const Token& token : more_) session.extend({&token, 1});
    const std::size_t newest = rows == kF16 ? kMore : kMore % kGroupEntries + kGroupEntries;
    std::size_t grown = 0;
    for (std::size_t il = 0; il < c.n_layers; ++il) {
      if (c.is_sliding[il]) continue;
      grown += c.n_kv_heads *
               (row_bytes(rows, c.head_dim, kMore - newest) + row_bytes(kF16, c.head_dim, newest));
    }
    std::size_t sliding = 0;
    for (std::size_t il = 0; il < c.n_layers; ++il)
      if (c.is_sliding[il]) sliding += session.tail(il).used_bytes();
    Session start = condensed(req);
    std::size_t sliding_before = 0;
    for (std::size_t il = 0; il < c.n_layers; ++il)
      if (c.is_sliding[il]) sliding_before += start.tail(il).used_bytes();
    EXPECT_EQ(session.kv_bytes() - sliding, before - sliding_before + grown);
  }
}

TEST_P(RowTypesTest, RatiosAreOfTheCacheInItsOwnTypes) {
  std::vector<std::size_t> entries;
  for (const RowTypes& rows : {kF16, kQ8, kQ4}) {
    Session session(engine_);
    const CompressionReport report = session.condense(prompt_, with("streaming", "50%", rows));
    std::size_t whole = 0;
    const ModelConfig& c = engine_->config();
    for (std::size_t i = 0; i < report.entries.size(); ++i)
      whole += c.n_kv_heads * row_bytes(rows, c.head_dim, kPrompt);
    EXPECT_LE(report.kept_bytes, whole / 2);
    EXPECT_GE(report.kept_bytes, whole * 3 / 10);
  }
}

TEST_P(RowTypesTest, LayerMajorEqualsCompressingAKeptCache) {
  for (const RowTypes& rows : {kQ8, kQ4}) {
    const CondenseRequest req = with("selkv", "30%", rows);
    Session layer_major = condensed(req);
    Session post_hoc(engine_);
    post_hoc.prefill(prompt_, {SIZE_MAX});
    post_hoc.compress(req);
    EXPECT_EQ(difference(layer_major, post_hoc), "");
    EXPECT_TRUE(same_bits(continue_with(layer_major, more_), continue_with(post_hoc, more_)));
  }
}

TEST_P(RowTypesTest, ForksAndThreadsGiveTheSameBits) {
  const auto threaded = load(2);
  for (const RowTypes& rows : {kQ8, kQ4}) {
    Session one = condensed(with("selkv", "30%", rows));
    Session fork = one.fork();
    const std::vector<float> expected = continue_with(one, more_);
    EXPECT_TRUE(same_bits(expected, continue_with(fork, more_)));
    // A fork in the middle of an aged tail.
    Session again = one.fork();
    EXPECT_TRUE(same_bits(continue_with(one, prompt_), continue_with(again, prompt_)));
    Session other(threaded);
    other.condense(prompt_, with("selkv", "30%", rows));
    // The first half goes on in one call. Not more: on a busy machine every node of a graph waits
    // for the slowest thread.
    const std::size_t half = more_.size() / 2;
    const std::vector<float> first = copy(other.extend(std::span(more_).first(half), half));
    EXPECT_TRUE(same_bits(first, std::span(expected).first(first.size())));
  }
}

TEST_P(RowTypesTest, AFailedExtendLeavesTheAgedTailAlone) {
  Session session = condensed(with("selkv", "30%", kQ4));
  session.extend(more_);
  Session untouched = session.fork();
  CancelFlag raised{true};
  EXPECT_THROW(session.extend(more_, 1, {{}, &raised}), Error);
  EXPECT_EQ(difference(session, untouched), "");
  EXPECT_TRUE(same_bits(continue_with(session, more_), continue_with(untouched, more_)));
}

TEST(RowTypes, HeadSizesThatDoNotFitAreRefused) {
  const auto engine = Engine::load(tiny_model("llama-hd80"), {.n_threads = 1});
  const auto prompt = random_tokens(100, engine->config().n_vocab, 1);
  Session session(engine);
  const std::string message = error_of(
      ErrorCode::kUnsupported, [&] { session.condense(prompt, with("selkv", "50%", kQ8)); });
  EXPECT_NE(message.find("80"), std::string::npos) << message;
  EXPECT_NE(message.find("32"), std::string::npos) << message;
  EXPECT_EQ(session.next_position(), 0u);
}

}  // namespace
}  // namespace precis::test
