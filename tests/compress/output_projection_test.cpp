// What W_O makes of values, against plain loops in double.
#include "compress/output_projection.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "compress/layer_case.h"
#include "compress/matrix_output.h"

namespace precis {
namespace {

using test::LayerCase;
using test::make_layer;
using test::MatrixOutput;
using test::Pattern;
using Row = std::vector<double>;

Row value_of(const LayerCase& layer, std::size_t head, std::size_t token) {
  const std::size_t width = layer.shape.kv.head_dim;
  const Half* row = layer.dense.head(head).values + token * width;
  Row out;
  for (std::size_t c = 0; c < width; ++c) out.push_back(static_cast<double>(to_float(row[c])));
  return out;
}

double l1(const Row& x) {
  double sum = 0;
  for (const double v : x) sum += std::abs(v);
  return sum;
}
double l2(const Row& x) {
  double sum = 0;
  for (const double v : x) sum += v * v;
  return std::sqrt(sum);
}

// ||R x||_2.
double factor_norm(const float* factor, const Row& x) {
  Row out(x.size(), 0.0);
  for (std::size_t r = 0; r < x.size(); ++r)
    for (std::size_t c = 0; c < x.size(); ++c)
      out[r] += static_cast<double>(factor[r * x.size() + c]) * x[c];
  return l2(out);
}

TEST(OutputProjection, NormsAreThoseOfEveryQueryHead) {
  for (const std::size_t n_outputs : {24u, 300u})
    for (const std::size_t n : {1u, 127u, 150u}) {
      const MatrixOutput output(n_outputs, 2 * 3 * 16, 4);
      LayerShape shape{{2, 16}, 3, {0.25f, 0.0f}, nullptr, &output};
      const LayerCase layer = make_layer(shape, n, Pattern::kRandom, 5);
      for (std::size_t h = 0; h < 2; ++h) {
        HeadView head = test::view_head(layer, h);
        const std::span<const float> norms = head.output_norms();
        ASSERT_EQ(norms.size(), 3 * n);
        for (std::size_t g = 0; g < 3; ++g)
          for (std::size_t t = 0; t < n; ++t) {
            const double wanted = l1(output.apply(h * 3 + g, value_of(layer, h, t)));
            EXPECT_NEAR(static_cast<double>(norms[g * n + t]), wanted, 1e-5 * wanted);
          }
        EXPECT_EQ(head.output_norms().data(), norms.data());  // computed once
      }
    }
}

TEST(OutputProjection, FactorsKeepLengths) {
  // With 10 outputs most directions of 16 channels vanish.
  for (const std::size_t n_outputs : {10u, 16u, 24u, 600u}) {
    const MatrixOutput output(n_outputs, 2 * 3 * 16, 6);
    LayerShape shape{{2, 16}, 3, {0.25f, 0.0f}, nullptr, &output};
    const LayerCase layer = make_layer(shape, 40, Pattern::kRandom, 7);
    for (std::size_t h = 0; h < 2; ++h) {
      HeadView head = test::view_head(layer, h);
      const std::span<const float> factors = head.output_factors();
      ASSERT_EQ(factors.size(), 3u * 16 * 16);
      for (std::size_t g = 0; g < 3; ++g) {
        const float* factor = factors.data() + g * 16 * 16;
        for (std::size_t r = 0; r < 16; ++r)
          for (std::size_t c = 0; c < r; ++c) EXPECT_EQ(factor[r * 16 + c], 0.0f);
        for (std::size_t t = 0; t < 40; ++t) {
          const Row value = value_of(layer, h, t);
          const double wanted = l2(output.apply(h * 3 + g, value));
          EXPECT_NEAR(factor_norm(factor, value), wanted, 1e-4 * wanted) << n_outputs;
        }
      }
    }
  }
}

TEST(OutputProjection, DeadChannelsHaveNoLength) {
  MatrixOutput output(20, 16, 8);
  for (std::size_t r = 0; r < 20; ++r)
    for (const std::size_t c : {0u, 3u, 15u}) output.weights[r * 16 + c] = 0.0f;
  LayerShape shape{{1, 16}, 1, {0.25f, 0.0f}, nullptr, &output};
  const LayerCase layer = make_layer(shape, 2, Pattern::kRandom, 9);
  HeadView head = test::view_head(layer, 0);
  const std::span<const float> factors = head.output_factors();
  Row x(16, 0.0);
  x[0] = 5;
  x[3] = -2;
  x[15] = 7;
  EXPECT_NEAR(factor_norm(factors.data(), x), 0.0, 1e-6);
  x[4] = 1;
  const double wanted = l2(output.apply(0, x));
  EXPECT_NEAR(factor_norm(factors.data(), x), wanted, 1e-5 * wanted);
}

TEST(OutputProjection, SmallColumnsCountForLargeValues) {
  MatrixOutput output(200, 16, 8);
  for (std::size_t r = 0; r < 200; ++r) output.weights[r * 16 + 7] *= 1e-4f;
  LayerShape shape{{1, 16}, 1, {0.25f, 0.0f}, nullptr, &output};
  const LayerCase layer = make_layer(shape, 2, Pattern::kRandom, 9);
  HeadView head = test::view_head(layer, 0);
  Row x(16, 0.0);
  x[7] = 1e4;
  const double wanted = l2(output.apply(0, x));
  EXPECT_NEAR(factor_norm(head.output_factors().data(), x), wanted, 1e-5 * wanted);
}

TEST(OutputProjection, ACancelledRequestEnds) {
  const MatrixOutput output(24, 16, 4);
  LayerShape shape{{1, 16}, 1, {0.25f, 0.0f}, nullptr, &output};
  const LayerCase layer = make_layer(shape, 40, Pattern::kRandom, 5);
  HeadView head = test::view_head(layer, 0);
  const CancelFlag cancel{true};
  head.cancel = &cancel;
  EXPECT_THROW(head.output_norms(), Error);
  head.cancel = nullptr;
  EXPECT_EQ(head.output_norms().size(), 40u);
}

// Keeps the largest norms and remembers what it was given.
class NormSelector final : public Selector {
 public:
  explicit NormSelector(bool reads) : reads_(reads) {}
  Protection protection() const override { return {}; }
  bool reads_output_norms() const override { return reads_; }
  std::vector<HeadPlan> select(const LayerTable& table) const override {
    seen.clear();
    if (table.output_norms != nullptr)
      seen.assign(table.output_norms, table.output_norms + table.n_kv_heads * table.n_tokens);
    std::vector<HeadPlan> plans(table.n_kv_heads);
    for (HeadPlan& plan : plans)
      for (std::uint32_t t = 0; t < table.entries_per_head(); ++t) plan.kept.push_back(t);
    return plans;
  }
  mutable std::vector<float> seen;

 private:
  bool reads_;
};
class ZeroScorer final : public Scorer {
 public:
  void score(HeadView&, std::span<float> scores) const override {
    std::fill(scores.begin(), scores.end(), 0.0f);
  }
};

TEST(OutputProjection, TheDriverGivesASelectorTheMeanOverTheGroup) {
  const MatrixOutput output(24, 2 * 3 * 16, 4);
  LayerShape shape{{2, 16}, 3, {0.25f, 0.0f}, nullptr, &output};
  const LayerCase layer = make_layer(shape, 50, Pattern::kRandom, 5);
  SerialExecutor serial;
  for (const bool reads : {false, true}) {
    const auto selector = std::make_shared<NormSelector>(reads);
    Method method;
    method.scorer = std::make_shared<ZeroScorer>();
    method.selector = selector;
    Condenser condenser(method, Budget::parse("50%"), {shape}, 50, 1);
    condenser.condense_layer(0, layer.dense, layer.observed, serial);
    ASSERT_EQ(selector->seen.size(), reads ? 100u : 0u);
    for (std::size_t i = 0; i < selector->seen.size(); ++i) {
      double wanted = 0;
      for (std::size_t g = 0; g < 3; ++g)
        wanted += l1(output.apply(i / 50 * 3 + g, value_of(layer, i / 50, i % 50))) / 3;
      EXPECT_NEAR(static_cast<double>(selector->seen[i]), wanted, 1e-5 * wanted);
    }
  }
}

}  // namespace
}  // namespace precis
