// Precis against libllama on tiny f32 models (real ones: parity_model_test.cpp).
//
// The reference is libllama with an f16 cache and flash attention: both then round keys and values
// to f16 in the same way, and what is left is the order of sums. (Measured, mean over 4 x 300
// tokens: 1e-10 to 1e-9, gemma3 6e-8 because ggml's GELU reads an f16 table and so amplifies the
// last bit. To libllama's f32 cache both Precis and libllama's own f16 cache are 1e-7 to 8e-7 away:
// the rounding of the cache.)
#include "oracle/parity.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "support/test_models.h"
#include "test_paths.h"

namespace precis::test {
namespace {

// More than nine windows of the gemma3 models.
constexpr std::size_t kTokens = 300;
constexpr double kMaxNmse = 2e-7;
// Over a few positions only; the worst single position measured is 6.5e-7.
constexpr double kMaxNmseOfFew = 2e-6;

// Model, and how prompts are multiplied by the weights.
class TinyParity : public testing::TestWithParam<std::tuple<const char*, MatmulMode>> {
 protected:
  void SetUp() override {
    const std::string path = tiny_model(std::get<0>(GetParam()));
    engine_ = Engine::load(path, {.n_threads = 1, .matmul = std::get<1>(GetParam())});
    oracle_ = std::make_unique<Oracle>(path, OracleOptions{.n_threads = 1});
    tokens_ = random_tokens(kTokens, oracle_->n_vocab(), 1);
    reference_ = oracle_->extend(tokens_);
  }
  // Reference logits of tokens [first, last).
  std::span<const float> reference(std::size_t first, std::size_t last) const {
    const std::size_t width = oracle_->n_vocab();
    return std::span<const float>(reference_).subspan(first * width, (last - first) * width);
  }

  std::shared_ptr<const Engine> engine_;
  std::unique_ptr<Oracle> oracle_;
  std::vector<Token> tokens_;
  std::vector<float> reference_;
};

TEST_P(TinyParity, ExtendInOneGo) {
  Session session(engine_);
  const double error = nmse(session.extend(tokens_, kTokens), reference_);
  std::printf("[ nmse     ] %s, %s: %.2e\n", std::get<0>(GetParam()),
              matmul_mode_name(std::get<1>(GetParam())), error);
  EXPECT_LE(error, kMaxNmse);
}

TEST_P(TinyParity, ExtendInPieces) {
  Session session(engine_);
  std::vector<float> logits;
  std::size_t at = 0;
  for (std::size_t piece = 1; at < kTokens; piece = piece % 37 + (at < 40 ? 0 : 3)) {
    const std::size_t n = std::min(piece, kTokens - at);
    const auto rows = session.extend(std::span(tokens_).subspan(at, n), n);
    logits.insert(logits.end(), rows.begin(), rows.end());
    at += n;
    ASSERT_EQ(session.next_position(), at);
  }
  EXPECT_LE(nmse(logits, reference_), kMaxNmse);
}

TEST_P(TinyParity, PrefillThenExtend) {
  for (const std::size_t n : {std::size_t{1}, std::size_t{15}, std::size_t{100}, kTokens - 1}) {
    Session session(engine_);
    session.prefill(std::span(tokens_).first(n));
    EXPECT_LE(nmse(session.last_logits(), reference(n - 1, n)), kMaxNmseOfFew) << n << " tokens";
    const auto rest = session.extend(std::span(tokens_).subspan(n), kTokens - n);
    EXPECT_LE(nmse(rest, reference(n, kTokens)), n < 200 ? kMaxNmse : kMaxNmseOfFew)
        << "after " << n << " tokens";
  }
}

TEST_P(TinyParity, FewerLogitsAreTheLastOnes) {
  Session all(engine_), few(engine_);
  const auto every = all.extend(tokens_, kTokens);
  const auto last = few.extend(tokens_, 3);
  ASSERT_EQ(last.size(), 3 * oracle_->n_vocab());
  EXPECT_LE(nmse(last, every.last(last.size())), 1e-9);
}

INSTANTIATE_TEST_SUITE_P(
    Models, TinyParity,
    testing::Combine(testing::Values("llama", "llama-hd64", "llama-hd80", "llama-mha", "qwen2",
                                     "qwen2-yarn", "qwen3", "gemma3", "gemma3-scaled"),
                     testing::Values(MatmulMode::kAuto, MatmulMode::kGgml, MatmulMode::kSgemm)),
    [](const auto& info) {
      std::string name = std::get<0>(info.param);
      name += std::string("_") + matmul_mode_name(std::get<1>(info.param));
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

// A tiny model proves something about a feature only if the feature changes its logits.
TEST(TinyModels, EveryFeatureMatters) {
  const std::filesystem::path folder = std::filesystem::path(PRECIS_TINY_DIR) / "ablated";
  std::size_t n_compared = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string stem = entry.path().stem();  // MODEL.FEATURE
    Oracle with(tiny_model(stem.substr(0, stem.find('.'))),
                {.n_threads = 1, .exact_attention = true});
    Oracle without(entry.path(), {.n_threads = 1, .exact_attention = true});
    const auto tokens = random_tokens(kTokens, with.n_vocab(), 1);
    EXPECT_GT(nmse(without.extend(tokens), with.extend(tokens)), 1000 * kMaxNmse) << stem;
    ++n_compared;
  }
  EXPECT_GE(n_compared, 11u);
}

}  // namespace
}  // namespace precis::test
