// SqueezeAttention's budgets: by hand, against all ways to make three groups, and through the
// driver.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "base/error.h"
#include "compress/condenser.h"
#include "compress/layer_case.h"
#include "methods/registry.h"

namespace precis {
namespace {

Method squeeze(const std::string& stage = "squeeze") {
  return builtin_methods().parse("score=knorm select=head(recent=1) layers=" + stage);
}

// Budgets in units of the mean after layers with these cosines, of n_layers.
std::vector<double> budgets(const std::vector<double>& cosines, std::size_t n_layers,
                            const std::string& stage = "squeeze") {
  std::vector<LayerTable> done(cosines.size());
  std::vector<double> weights;
  const Method method = squeeze(stage);
  for (std::size_t l = 0; l < cosines.size(); ++l) {
    done[l].layer = l;
    done[l].n_layers = n_layers;
    done[l].n_kv_heads = 2;
    done[l].n_tokens = 500;
    done[l].hidden_cosine = cosines[l];
    weights.push_back(method.layers->weigh(done[l]));
  }
  std::vector<double> out = method.layers->divide(done, weights, n_layers * 1000);
  for (double& budget : out) budget /= 1000;
  return out;
}

void expect_near(const std::vector<double>& a, const std::vector<double>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-12) << i;
}

TEST(Squeeze, TakesFromLayersThatChangeLittle) {
  EXPECT_TRUE(squeeze().observation(100).hidden_cosine);
  EXPECT_TRUE(squeeze().layers->sees_scores());
  // Groups {0.2, 0.21}, {0.5}, {0.9, 0.91}: 2 layers get 0.5, the others (5 - 1) / 3.
  expect_near(budgets({0.9, 0.2, 0.5, 0.91, 0.21}, 5, "squeeze(p=0.5)"),
              {0.5, 4.0 / 3, 4.0 / 3, 0.5, 4.0 / 3});
  expect_near(budgets({0.9, 0.2, 0.5, 0.91, 0.21}, 5, "squeeze(p=1)"), {1, 1, 1, 1, 1});
  expect_near(budgets({0.9, 0.2, 0.5}, 3, "squeeze(p=0)"), {0, 1.5, 1.5});
  // Two groups, one group, one layer.
  expect_near(budgets({0.3, 0.8, 0.8}, 3), {2.3, 0.35, 0.35});
  expect_near(budgets({0.7, 0.7}, 2), {1, 1});
  expect_near(budgets({0.7}, 1), {1});
}

TEST(Squeeze, GivesOutTheFreeBudgetAsLayersCome) {
  expect_near(budgets({0.4}, 4), {4});
  // (4 - 2) / 2 on top of 0.35 and 1.65.
  expect_near(budgets({0.4, 0.8}, 4), {2.65, 1.35});
  for (const std::size_t n : {1u, 2u, 3u, 4u}) {
    const std::vector<double> all = {0.1, 0.6, 0.9, 0.5};
    double sum = 0;
    for (const double budget : budgets({all.begin(), all.begin() + static_cast<long>(n)}, 4))
      sum += budget;
    EXPECT_NEAR(sum, 4, 1e-12);
  }
}

double spread(const std::vector<double>& group) {
  double mean = 0;
  for (const double x : group) mean += x / static_cast<double>(group.size());
  double sum = 0;
  for (const double x : group) sum += (x - mean) * (x - mean);
  return sum;
}

// Three groups of any numbers, contiguous or not.
TEST(Squeeze, GroupsAreTheBestOfAll) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> draw(-0.2, 1);
  for (int repetition = 0; repetition < 40; ++repetition) {
    std::vector<double> cosines(7);
    for (double& cosine : cosines) cosine = draw(random);
    double best = std::numeric_limits<double>::infinity();
    std::vector<std::size_t> least;
    for (std::size_t code = 0; code < 2187; ++code) {
      std::vector<double> groups[3];
      std::vector<std::size_t> members[3];
      for (std::size_t l = 0, rest = code; l < 7; ++l, rest /= 3) {
        groups[rest % 3].push_back(cosines[l]);
        members[rest % 3].push_back(l);
      }
      if (groups[0].empty() || groups[1].empty() || groups[2].empty()) continue;
      const double sum = spread(groups[0]) + spread(groups[1]) + spread(groups[2]);
      if (sum >= best) continue;
      best = sum;
      for (std::size_t g = 0; g < 3; ++g)
        if (*std::max_element(groups[g].begin(), groups[g].end()) ==
            *std::max_element(cosines.begin(), cosines.end()))
          least = members[g];
    }
    const std::vector<double> found = budgets(cosines, 7);
    for (std::size_t l = 0; l < 7; ++l) {
      const bool is_least = std::find(least.begin(), least.end(), l) != least.end();
      EXPECT_EQ(std::abs(found[l] - 0.35) < 1e-9, is_least) << repetition << ", layer " << l;
    }
  }
}

// Through the driver: the entries are the rule's, and their sum is the whole budget.
TEST(Squeeze, LayersKeepTheirBudgets) {
  constexpr std::size_t kTokens = 400;
  const LayerShape shape{{2, 16}, 2, {0.25f, 0}};
  const std::vector<float> cosines = {0.3f, 0.5f, 0.95f, 0.28f, 0.97f, 0.52f};
  std::vector<test::LayerCase> layers;
  for (std::size_t l = 0; l < cosines.size(); ++l) {
    layers.push_back(
        test::make_layer(shape, kTokens, test::Pattern::kRandom, static_cast<std::uint32_t>(l)));
    // Around the mean that is wanted.
    for (std::size_t t = 0; t < kTokens; ++t)
      layers[l].observed.hidden_cosines[t] = cosines[l] + (t % 2 == 0 ? 0.02f : -0.02f);
  }
  Condenser condenser(squeeze(), Budget::parse("30%"),
                      std::vector<LayerShape>(cosines.size(), shape), kTokens, 1);
  const std::size_t m = condenser.entries_per_head();
  SerialExecutor executor;
  for (std::size_t l = 0; l < layers.size(); ++l)
    condenser.condense_layer(l, layers[l].dense, layers[l].observed, executor);
  condenser.finish(executor);
  std::size_t sum = 0;
  for (std::size_t l = 0; l < layers.size(); ++l)
    for (const std::size_t n : condenser.report().entries[l]) {
      sum += n;
      const double part = l == 2 || l == 4 ? 0.35 : (6 - 2 * 0.35) / 4;
      EXPECT_NEAR(static_cast<double>(n), part * static_cast<double>(m), 1.5) << "layer " << l;
    }
  EXPECT_EQ(sum, m * 2 * layers.size());
}

// A layer that is among the least important of the first three and not of all four has given up
// what it should have: the budget is not exceeded, and an eighth of it stays free.
TEST(Squeeze, WhatWasGivenUpIsNotSpentElsewhere) {
  constexpr std::size_t kTokens = 400;
  const LayerShape shape{{2, 16}, 2, {0.25f, 0}};
  Condenser condenser(squeeze(), Budget::parse("30%"), std::vector<LayerShape>(4, shape), kTokens,
                      1);
  SerialExecutor executor;
  const float cosines[] = {0.1f, 0.2f, 0.7f, 0.99f};
  for (std::size_t l = 0; l < 4; ++l) {
    test::LayerCase layer = test::make_layer(shape, kTokens, test::Pattern::kRandom, 3);
    layer.observed.hidden_cosines.assign(kTokens, cosines[l]);
    condenser.condense_layer(l, layer.dense, layer.observed, executor);
  }
  condenser.finish(executor);
  double sum = 0;
  for (const std::vector<std::size_t>& layer : condenser.report().entries)
    for (const std::size_t n : layer) sum += static_cast<double>(n);
  const double whole = 4 * 2 * static_cast<double>(condenser.entries_per_head());
  EXPECT_NEAR(sum / whole, 1 - 0.53 / 4, 0.01);
}

// Weights of a damaged file; an error, since nothing is wrong with the program.
TEST(Squeeze, HiddenStatesThatAreNotFiniteAreAnError) {
  const LayerShape shape{{1, 16}, 1, {0.25f, 0}};
  Condenser condenser(squeeze(), Budget::parse("30%"), {shape}, 100, 1);
  test::LayerCase layer = test::make_layer(shape, 100, test::Pattern::kRandom, 3);
  layer.observed.hidden_cosines[7] = std::numeric_limits<float>::quiet_NaN();
  SerialExecutor executor;
  try {
    condenser.condense_layer(0, layer.dense, layer.observed, executor);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("hidden states of layer 0"), std::string::npos);
  }
}

}  // namespace
}  // namespace precis
