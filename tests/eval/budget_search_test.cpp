// The search for budgets of layers: on a function whose best shares are known, and on a tiny model.
#include "eval/budget_search.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/error.h"
#include "eval/budget_objective.h"
#include "eval/suite.h"
#include "methods/registry.h"
#include "support/test_models.h"

namespace precis::test {
namespace {

// Least where each layer has its own best share.
double distance_to(const std::vector<double>& best, const std::vector<double>& shares) {
  double sum = 0;
  for (std::size_t l = 0; l < best.size(); ++l) sum += std::pow(std::log(shares[l] / best[l]), 2);
  return sum;
}

const std::vector<double> kBest = {2, 1.5, 1, 1, 0.5, 1.25, 0.25, 0.5};

TEST(BudgetSearch, FindsSharesThatAreKnown) {
  BudgetSearchOptions options;
  options.group = 4;
  options.generations = 60;
  const BudgetSearch search(8, options);
  EXPECT_EQ(search.n_candidates(), 1 + 2 * 60 * 8u);  // 4 + floor(3 ln 4) = 8
  std::vector<double> values;
  std::size_t n_notes = 0;
  const LayerShares found = search.run(
      values,
      [&](const std::vector<double>& shares) {
        EXPECT_EQ(shares.size(), 8u);
        EXPECT_NEAR(std::accumulate(shares.begin(), shares.end(), 0.0), 8, 1e-3);
        for (const double share : shares) EXPECT_GE(share, 0.001);
        return distance_to(kBest, shares);
      },
      [&](const LayerShares& best) {
        ++n_notes;
        EXPECT_EQ(best.value, *std::min_element(values.begin(), values.end()));
      });
  EXPECT_EQ(values.size(), search.n_candidates());
  EXPECT_EQ(n_notes, 1 + 2 * 60u);
  EXPECT_EQ(values[0], distance_to(kBest, std::vector<double>(8, 1)));
  EXPECT_LT(found.value, 0.1 * values[0]);
  EXPECT_EQ(found.value, distance_to(kBest, found.shares));
}

TEST(BudgetSearch, GoesOnAsIfItHadNotStopped) {
  BudgetSearchOptions options;
  options.group = 3;
  options.generations = 4;
  const BudgetSearch search(8, options);
  const auto evaluate = [](const std::vector<double>& shares) {
    return distance_to(kBest, shares);
  };
  std::vector<double> whole;
  const LayerShares expected = search.run(whole, evaluate, {});
  for (const std::size_t n : {0u, 1u, 5u, 8u, 40u}) {
    std::vector<double> values;
    std::size_t n_new = 0;
    try {
      search.run(values,
                 [&](const std::vector<double>& shares) {
                   if (values.size() == n) throw Error(ErrorCode::kCancelled, "stopped");
                   return evaluate(shares);
                 },
                 {});
      FAIL();
    } catch (const Error&) {
    }
    EXPECT_EQ(values.size(), n);
    const LayerShares found = search.run(values,
                                         [&](const std::vector<double>& shares) {
                                           ++n_new;
                                           return evaluate(shares);
                                         },
                                         {});
    EXPECT_EQ(values, whole);
    EXPECT_EQ(found.shares, expected.shares);
    EXPECT_EQ(n_new, whole.size() - n);
  }
  options.seed = 2;
  std::vector<double> other;
  BudgetSearch(8, options).run(other, evaluate, {});
  EXPECT_NE(other, whole);
  std::vector<double> too_many(search.n_candidates() + 1);
  EXPECT_THROW(search.run(too_many, evaluate, {}), Error);
}

TEST(BudgetSearch, IsNeverWorseThanEqualShares) {
  const BudgetSearch search(5, {});
  std::vector<double> values;
  // Equal shares are best.
  const LayerShares found = search.run(values,
                                       [](const std::vector<double>& shares) {
                                         return distance_to(std::vector<double>(5, 1), shares);
                                       },
                                       {});
  EXPECT_EQ(found.shares, std::vector<double>(5, 1));
  EXPECT_EQ(found.value, 0);
}

class Objective : public testing::Test {
 protected:
  void SetUp() override {
    engine_ =
        Engine::load(tiny_model("llama-hd64"), {.n_threads = 1, .matmul = MatmulMode::kSgemm});
    FidelityOptions wanted;
    std::string text;
    for (std::size_t i = 0; i < 700; ++i) text += "word" + std::to_string(i * i % 97) + " ";
    wanted.texts = {{"a.txt", text}};
    wanted.n_prefix = 160;
    wanted.n_continuation = 24;
    wanted.n_passages = 2;
    std::vector<std::string> left_out;
    passages_ = cut_passages(*engine_, wanted, left_out);
    ASSERT_EQ(passages_.size(), 2u);
  }
  static Method method(const std::string& spec) { return builtin_methods().parse(spec); }
  static Method with(const std::vector<double>& shares) {
    return method("snapkv layers=weights(list=" + print_numbers(shares) + ",fit=exact)");
  }
  EvalMethod base() const { return {method("snapkv"), Budget::parse("25%"), "snapkv", {}}; }

  std::shared_ptr<const Engine> engine_;
  std::vector<Passage> passages_;
};

TEST_F(Objective, IsTheDivergenceThatFidelityMeasures) {
  const BudgetObjective objective(engine_, passages_, base(), 1, nullptr, {});
  const std::size_t n_layers = engine_->compressible_layers().size();
  std::vector<double> falling;
  for (std::size_t l = 0; l < n_layers; ++l) falling.push_back(2.0 - static_cast<double>(l % 2));
  for (const Method& m :
       {method("snapkv"), with(falling), with(std::vector<double>(n_layers, 1))}) {
    EvalOptions options;
    options.methods = {{m, Budget::parse("25%"), "m", {}}};
    options.seed = 1;
    double mean = 0;
    for (const Passage& passage : passages_)
      mean += std::get<FidelityRow>(run_fidelity(engine_, passage, options).rows[0]).mean_kl /
              static_cast<double>(passages_.size());
    EXPECT_GT(mean, 0);
    // Fidelity reads token by token.
    EXPECT_NEAR(objective.mean_kl(m), mean, 1e-4 * mean);
  }
  EXPECT_EQ(objective.mean_kl(method("snapkv")),
            objective.mean_kl(with(std::vector<double>(n_layers, 1))));
}

TEST_F(Objective, IsImprovedByTheSearch) {
  const BudgetObjective objective(engine_, passages_, base(), 1, nullptr, {});
  BudgetSearchOptions options;
  options.generations = 4;
  const BudgetSearch search(engine_->compressible_layers().size(), options);
  const auto evaluate = [&](const std::vector<double>& shares) {
    return objective.mean_kl(with(shares));
  };
  std::vector<double> values, again;
  const LayerShares found = search.run(values, evaluate, {});
  EXPECT_LE(found.value, values[0]);
  EXPECT_EQ(objective.mean_kl(with(found.shares)), found.value);
  // The same from another reading of the passages.
  const BudgetObjective other(engine_, passages_, base(), 1, nullptr, {});
  search.run(again, [&](const std::vector<double>& shares) { return other.mean_kl(with(shares)); },
             {});
  EXPECT_EQ(again, values);
}

TEST_F(Objective, RefusesWhatHasNoBudgetsAndIsCancelled) {
  EvalMethod full = base();
  full.method = method("full");
  EXPECT_THROW(BudgetObjective(engine_, passages_, full, 1, nullptr, {}), Error);
  EvalMethod everything = base();
  everything.budget = Budget::parse("100%");
  const BudgetObjective whole(engine_, passages_, everything, 1, nullptr, {});
  EXPECT_THROW(whole.mean_kl(method("snapkv")), Error);
  CancelFlag cancel{false};
  const BudgetObjective objective(engine_, passages_, base(), 1, &cancel, {});
  cancel = true;
  EXPECT_THROW(objective.mean_kl(method("snapkv")), Error);
}

}  // namespace
}  // namespace precis::test
