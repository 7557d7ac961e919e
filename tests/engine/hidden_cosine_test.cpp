// How much attention turns the hidden state, as it is observed in passing: against attention and
// its projection in plain double loops.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/session_checks.h"

namespace precis::test {
namespace {

// Dense causal attention of one layer over all tokens at once, in double; what it gave is kept.
class PlainAttention final : public AttentionOp {
 public:
  explicit PlainAttention(const ModelConfig& config) : c_(config) {}

  void prepare(std::size_t, std::size_t, std::size_t) override {}
  void store(const AttentionCall& call) noexcept override {
    if (call.thread != 0) return;
    const std::size_t n = call.n_tokens * c_.n_kv_heads * c_.head_dim;
    k_.assign(call.k, call.k + n);
    v_.assign(call.v, call.v + n);
  }
  void attend(const AttentionCall&) noexcept override {}
  void finish(const AttentionCall& call) noexcept override {
    if (call.thread != 0) return;
    const std::size_t d = c_.head_dim;
    out.assign(call.n_tokens * c_.n_heads * d, 0);
    for (std::size_t t = 0; t < call.n_tokens; ++t)
      for (std::size_t h = 0; h < c_.n_heads; ++h) {
        const float* q = call.q + (t * c_.n_heads + h) * d;
        std::vector<double> weights;
        double sum = 0;
        for (std::size_t j = 0; j <= t; ++j) {
          const float* k = k_.data() + (j * c_.n_kv_heads + h / c_.group()) * d;
          double logit = 0;
          for (std::size_t i = 0; i < d; ++i)
            logit += static_cast<double>(q[i]) * static_cast<double>(k[i]);
          weights.push_back(std::exp(logit * static_cast<double>(c_.attn_scale)));
          sum += weights.back();
        }
        double* row = out.data() + (t * c_.n_heads + h) * d;
        for (std::size_t j = 0; j <= t; ++j)
          for (std::size_t i = 0; i < d; ++i)
            row[i] += weights[j] / sum *
                      static_cast<double>(v_[(j * c_.n_kv_heads + h / c_.group()) * d + i]);
      }
    for (std::size_t i = 0; i < out.size(); ++i) call.out[i] = static_cast<float>(out[i]);
  }

  std::vector<double> out;  // [tokens, heads, head_dim]

 private:
  const ModelConfig& c_;
  std::vector<float> k_, v_;
};

class HiddenCosine : public TinySession {
 protected:
  HiddenCosine() : TinySession(75, 0) {}
};

class PlainHiddenCosine : public HiddenCosine {};

TEST_P(PlainHiddenCosine, IsThatOfPlainLoops) {
  const ModelConfig& c = engine_->config();
  ASSERT_FALSE(c.post_norms);
  Session session(engine_);
  Observation wanted;
  wanted.hidden_cosine = true;
  session.prefill(prompt_, wanted);
  GraphRunner runner(engine_->shared_model(), engine_->backend());
  PlainAttention attention(c);
  std::vector<float> hidden(prompt_.size() * c.n_embd);
  runner.embed(prompt_, hidden.data());
  double least = 1;
  for (std::size_t il = 0; il < c.n_layers; ++il) {
    const std::vector<float> before = hidden;
    const std::size_t n = prompt_.size();
    runner.run_layer(il, 0, n, n, n, hidden.data(), attention);
    const std::size_t width = c.n_heads * c.head_dim;
    std::vector<float> projection(c.n_embd * width);
    engine_->model().expand_output(il, 0, width, projection.data());
    ASSERT_EQ(session.observed(il).hidden_cosines.size(), n);
    for (std::size_t t = 0; t < n; ++t) {
      double dot = 0, a = 0, b = 0;
      for (std::size_t e = 0; e < c.n_embd; ++e) {
        const auto x = static_cast<double>(before[t * c.n_embd + e]);
        double y = x;
        for (std::size_t i = 0; i < width; ++i)
          y += static_cast<double>(projection[e * width + i]) * attention.out[t * width + i];
        dot += x * y;
        a += x * x;
        b += y * y;
      }
      const double expected = dot / std::sqrt(a * b);
      least = std::min(least, expected);
      // Keys and values of the session are f16.
      EXPECT_NEAR(static_cast<double>(session.observed(il).hidden_cosines[t]), expected, 1e-3)
          << "layer " << il << ", token " << t;
    }
  }
  EXPECT_LT(least, 0.99);  // there is something to see
}

INSTANTIATE_TEST_SUITE_P(TinyModels, PlainHiddenCosine, testing::Values("llama", "qwen3"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(HiddenCosine, ChangesNothingElse) {
  Observation wanted{10};
  Session plain(engine_), watched(engine_);
  plain.prefill(prompt_, wanted);
  wanted.hidden_cosine = true;
  watched.prefill(prompt_, wanted);
  EXPECT_EQ(difference(plain, watched), "");
  EXPECT_TRUE(same_bits(plain.last_logits(), watched.last_logits()));
  for (const std::size_t il : engine_->compressible_indices()) {
    EXPECT_TRUE(same_bits(std::span(plain.observed(il).queries), watched.observed(il).queries));
    EXPECT_TRUE(plain.observed(il).hidden_cosines.empty());
    ASSERT_EQ(watched.observed(il).hidden_cosines.size(), prompt_.size());
    for (const float cosine : watched.observed(il).hidden_cosines)
      EXPECT_TRUE(cosine >= -1 && cosine <= 1) << cosine;
  }
}

TEST_P(HiddenCosine, IsTheSameForAnyThreadsAndParts) {
  Observation wanted;
  wanted.hidden_cosine = true;
  Session one(engine_), three(load(3)), parts(engine_);
  one.prefill(prompt_, wanted);
  three.prefill(prompt_, wanted);
  parts.prefill(std::span<const Token>(prompt_).first(31), wanted);
  parts.prefill(std::span<const Token>(prompt_).subspan(31), wanted);
  for (const std::size_t il : engine_->compressible_indices()) {
    EXPECT_EQ(three.observed(il).hidden_cosines, one.observed(il).hidden_cosines);
    ASSERT_EQ(parts.observed(il).hidden_cosines.size(), prompt_.size());
    for (std::size_t t = 0; t < prompt_.size(); ++t)
      EXPECT_NEAR(parts.observed(il).hidden_cosines[t], one.observed(il).hidden_cosines[t], 1e-4f);
  }
  Session lacking(engine_);
  lacking.prefill(std::span<const Token>(prompt_).first(31));
  EXPECT_NE(error_of(ErrorCode::kInvalidArgument,
                     [&] { lacking.prefill(std::span<const Token>(prompt_).subspan(31), wanted); })
                .find("attention changes"),
            std::string::npos);
}

TEST_P(HiddenCosine, ServesSqueeze) {
  const CondenseRequest wanted = request("squeeze(recent=8)", "40%");
  Session later(engine_);
  later.prefill(prompt_, wanted.method.observation(prompt_.size()));
  later.compress(wanted);
  EXPECT_EQ(difference(later, condensed(wanted)), "");
  Session lacking(engine_);
  lacking.prefill(prompt_, {prompt_.size()});
  EXPECT_NE(error_of(ErrorCode::kInvalidArgument, [&] { lacking.compress(wanted); })
                .find("attention changes"),
            std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(TinyModels, HiddenCosine,
                         testing::Values("llama", "qwen2", "qwen3", "gemma3"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace precis::test
