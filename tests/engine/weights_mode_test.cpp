// Converted weights on a small model: the same f32 products, batches with the bits of solo runs,
// and damaged scales.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

#include "engine/batch.h"
#include "engine/requantised.h"
#include "engine/session_checks.h"
#include "oracle/parity.h"

namespace precis::test {
namespace {

std::shared_ptr<const Engine> load(const std::string& path, WeightsMode mode) {
  return Engine::load(path, {.n_threads = 1, .matmul = MatmulMode::kSgemm, .weights = mode});
}

class ConvertedModel : public testing::TestWithParam<ggml_type> {};
INSTANTIATE_TEST_SUITE_P(Types, ConvertedModel,
                         testing::Values(GGML_TYPE_Q5_0, GGML_TYPE_Q4_0, GGML_TYPE_IQ4_NL),
                         [](const auto& info) { return std::string(ggml_type_name(info.param)); });

TEST_P(ConvertedModel, F32ProductsHaveTheBitsOfTheFilesForm) {
  const RequantisedModel model(tiny_model("llama"), GetParam());
  const auto stored = load(model.path(), WeightsMode::kFile);
  const auto converted = load(model.path(), WeightsMode::kQ8_0);
  const auto tokens = random_tokens(150, stored->config().n_vocab, 3);
  Session a(stored), b(converted);
  const auto x = copy(a.extend(tokens, 20));
  const auto y = copy(b.extend(tokens, 20));
  EXPECT_TRUE(same_bits(std::span<const float>(x), std::span<const float>(y)));
  EXPECT_EQ(difference(a, b), "");
  // One token at a time is ggml's, which may sum another type in another order.
  EXPECT_LT(nmse(continue_with(b, tokens), continue_with(a, tokens)), 1e-6);
}

TEST_P(ConvertedModel, IsReported) {
  const RequantisedModel model(tiny_model("llama"), GetParam());
  const auto converted = load(model.path(), WeightsMode::kQ8_0);
  const WeightsReport& report = converted->model().weights_report();
  EXPECT_EQ(report.mode, WeightsMode::kQ8_0);
  ASSERT_EQ(report.forms.size(), 1u);
  const WeightForm& form = report.forms[0];
  EXPECT_EQ(form.type, ggml_type_name(GetParam()));
  EXPECT_EQ(form.converted, "q8_0");
  EXPECT_TRUE(form.is_converted);
  EXPECT_EQ(form.n_matrices, 7 * converted->config().n_layers + 1);
  EXPECT_EQ(form.converted_bytes * ggml_type_size(GetParam()),
            form.file_bytes * ggml_type_size(GGML_TYPE_Q8_0));
  for (const MatmulKind& kind : converted->model().matmul_report().kinds)
    EXPECT_EQ(kind.type, "q8_0");
  const auto stored = load(model.path(), WeightsMode::kFile);
  EXPECT_FALSE(stored->model().weights_report().forms.at(0).is_converted);
  EXPECT_EQ(stored->model().weights_report().added_bytes(), 0u);
  EXPECT_EQ(converted->model().weight_totals().step_bytes,
            stored->model().weight_totals().step_bytes + report.added_bytes());
}

TEST_P(ConvertedModel, BatchesEqualSoloRuns) {
  const RequantisedModel model(tiny_model("llama"), GetParam());
  const auto engine = load(model.path(), WeightsMode::kQ8_0);
  BatchDecoder decoder(engine);
  std::vector<Session> batched, alone;
  for (unsigned i = 0; i < 9; ++i) {
    Session session(engine);
    session.condense(random_tokens(60 + i, engine->config().n_vocab, i), request("selkv", "50%"));
    alone.push_back(session.fork());
    batched.push_back(std::move(session));
  }
  for (const std::size_t n : {9, 8, 5, 2, 1}) {
    const auto tokens = random_tokens(n, engine->config().n_vocab, 77);
    std::vector<BatchEntry> entries;
    for (std::size_t i = 0; i < n; ++i) entries.push_back({&batched[i], tokens[i]});
    decoder.step(entries);
    for (std::size_t i = 0; i < n; ++i) {
      alone[i].extend({&tokens[i], 1});
      ASSERT_TRUE(same_bits(batched[i].last_logits(), alone[i].last_logits())) << n << ", " << i;
    }
  }
}

// Matrices without an exact form, and those too small to be worth measuring, stay as they are.
TEST(WeightsMode, OthersStayAsStored) {
  const auto plain = load(tiny_model("llama"), WeightsMode::kQ8_0);
  EXPECT_TRUE(plain->model().weights_report().forms.empty());
  const RequantisedModel model(tiny_model("llama"), GGML_TYPE_Q5_0);
  const auto small = load(model.path(), WeightsMode::kAuto);
  ASSERT_EQ(small->model().weights_report().forms.size(), 1u);
  EXPECT_FALSE(small->model().weights_report().forms[0].is_converted);
  EXPECT_EQ(small->model().weights_report().forms[0].speedup, 0.0);
}

// A file whose scales are infinite or no numbers: the same logits in both forms, none of them
// finite, and no crash.
TEST(WeightsMode, DamagedScales) {
  constexpr std::uint16_t kScales[] = {0x7c00, 0xfc00, 0x7e00, 0xffff};
  for (const std::uint16_t scale : kScales) {
    const RequantisedModel model(
        tiny_model("llama"), GGML_TYPE_Q5_0,
        [scale](const std::string& name, std::byte* rows, std::size_t bytes) {
          if (name != "blk.1.ffn_down.weight") return;
          for (std::size_t at = 0; at < bytes; at += 22) std::memcpy(rows + at, &scale, 2);
        });
    std::vector<std::vector<float>> logits;
    for (const WeightsMode mode : {WeightsMode::kFile, WeightsMode::kQ8_0}) {
      const auto engine = load(model.path(), mode);
      Session session(engine);
      logits.push_back(copy(session.extend(random_tokens(8, engine->config().n_vocab, 3), 2)));
      for (const float value : logits.back()) ASSERT_FALSE(std::isfinite(value)) << scale;
    }
    EXPECT_EQ(logits[0].size(), logits[1].size());
  }
}

}  // namespace
}  // namespace precis::test
