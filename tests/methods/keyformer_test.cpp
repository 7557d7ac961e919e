// Keyformer: accumulated attention with Gumbel noise on its logits.
#include <gtest/gtest.h>

#include "compress/step.h"
#include "methods/plain_layer.h"

namespace precis {
namespace {

using namespace test;

std::vector<float> noisy_scores(const std::string& stage, const LayerCase& layer, std::size_t head,
                                std::uint64_t seed) {
  const Method method = builtin_methods().parse("score=" + stage + " select=head");
  HeadView view = view_head(layer, head);
  view.seed = seed;
  std::vector<float> scores(layer.n_tokens, -1.0f);
  method.scorer->score(view, scores);
  return scores;
}

TEST(Keyformer, EveryQueryGivesOneInAll) {
  const LayerCase layer = make_layer({{2, 16}, 3, {0.25f, 0.0f}}, 40, Pattern::kRandom, 3);
  for (const char* stage :
       {"keyformer(window=5)", "keyformer(window=5,tau=0.05)", "keyformer(window=5,tau=50)"}) {
    double sum = 0;
    for (const float score : noisy_scores(stage, layer, 1, 9)) {
      EXPECT_GE(score, 0.0f);
      sum += static_cast<double>(score);
    }
    EXPECT_NEAR(sum, 15.0, 1e-4);
  }
}

// The largest of logits with Gumbel noise falls on token j with j's probability: at a temperature
// near 0 the mean over seeds is attention itself.
TEST(Keyformer, NoiseIsGumbel) {
  const std::size_t n = 6;
  const LayerCase layer = make_layer({{1, 16}, 2, {0.25f, 0.0f}}, n, Pattern::kRandom, 4);
  Row attention(n, 0.0);
  for (std::size_t g = 0; g < 2; ++g) {
    const PlainAttention row = plain_attention(layer, 0, g, n - 1);
    for (std::size_t j = 0; j < n; ++j) attention[j] += row.weights[j];
  }
  constexpr std::size_t kSeeds = 20000;
  Row mean(n, 0.0);
  for (std::size_t seed = 0; seed < kSeeds; ++seed) {
    const auto scores = noisy_scores("keyformer(window=1,tau=0.01)", layer, 0, seed * 7919 + 1);
    for (std::size_t j = 0; j < n; ++j)
      mean[j] += static_cast<double>(scores[j]) / static_cast<double>(kSeeds);
  }
  // Four standard deviations of a mean of 20,000 pairs of draws, and what ties at that temperature.
  for (std::size_t j = 0; j < n; ++j)
    EXPECT_NEAR(mean[j], attention[j], 4 * std::sqrt(0.5 / kSeeds) + 2e-3) << j;
}

// The rows of one draw: all tokens become alike as the temperature rises, and the noise of a query
// does not depend on which other queries are read.
TEST(Keyformer, HotIsUniformAndNoiseBelongsToTheQuery) {
  const std::size_t n = 30;
  const LayerCase layer = make_layer({{1, 16}, 1, {0.25f, 0.0f}}, n, Pattern::kRandom, 5);
  for (const float score : noisy_scores("keyformer(window=1,tau=100)", layer, 0, 3))
    EXPECT_NEAR(static_cast<double>(score), 1.0 / n, 0.15 / n);
  const auto both = noisy_scores("keyformer(window=2)", layer, 0, 3);
  const auto last = noisy_scores("keyformer(window=1)", layer, 0, 3);
  double other = 0;  // what the last query but one gave
  for (std::size_t j = 0; j < n; ++j) {
    EXPECT_GE(both[j] + 1e-6f, last[j]);
    other += static_cast<double>(both[j]) - static_cast<double>(last[j]);
  }
  EXPECT_NEAR(other, 1.0, 1e-5);
  EXPECT_NE(noisy_scores("keyformer(window=1)", layer, 0, 4), last);
}

// At the smallest temperature a step's weights are far outside of what a float holds.
TEST(Keyformer, StepsOfAColdRowAddUpToOne) {
  const Method method = builtin_methods().parse("keyformer(tau=0.01) decode=step");
  constexpr std::size_t kEntries = 100;
  std::vector<std::int32_t> positions;
  std::vector<float> attention, sums(kEntries, 0.0f);
  for (std::size_t i = 0; i < kEntries; ++i) {
    positions.push_back(static_cast<std::int32_t>(i));
    attention.push_back(i == 0 ? 0.9f : i < 50 ? 0.1f / 49 : 0.0f);
  }
  StepHead head;
  head.n = kEntries;
  head.positions = positions.data();
  head.attention = attention.data();
  head.attention_stride = kEntries;
  head.fields = {sums.data(), kEntries};
  for (std::size_t step = 0; step < 200; ++step) {
    head.n_before = 0;
    head.seed = step;
    method.scorer->step()->observe(head);
  }
  double total = 0;
  for (const float sum : sums) {
    ASSERT_TRUE(std::isfinite(sum));
    total += static_cast<double>(sum);
  }
  EXPECT_NEAR(total, 200, 1e-3);
  EXPECT_GT(sums[0], 150);  // the most attended wins most draws
  EXPECT_EQ(sums[60], 0.0f);
}

}  // namespace
}  // namespace precis
