// The driver, with stages made for the purpose: budgets, protection, bits, errors, cancelling,
// report.
#include "compress/condenser.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "compress/layer_case.h"
#include "support/head_rows.h"

namespace precis {
namespace {

using test::fingerprint;
using test::LayerCase;
using test::make_layer;
using test::Pattern;

using Scores = std::function<void(HeadView&, std::span<float>)>;
using Plans = std::function<std::vector<HeadPlan>(const LayerTable&)>;
using Merging = std::function<HeadMerge(HeadView&, const HeadPlan&)>;

struct ScorerOf final : Scorer {
  Scores run = [](HeadView&, std::span<float> scores) {
    std::fill(scores.begin(), scores.end(), 0.0f);
  };
  std::size_t queries = 0;
  void score(HeadView& head, std::span<float> scores) const override { run(head, scores); }
  std::size_t queries_needed(std::size_t n) const override { return std::min(queries, n); }
};

// Keeps the sinks, the recent tokens and the earliest others.
std::vector<HeadPlan> keep_earliest(const LayerTable& table) {
  HeadPlan plan;
  std::size_t room = table.entries_per_head() - table.protection.count(table.n_tokens);
  for (std::size_t t = 0; t < table.n_tokens; ++t) {
    const bool covered = table.protection.covers(t, table.n_tokens);
    if (!covered && room == 0) continue;
    if (!covered) --room;
    plan.kept.push_back(static_cast<std::uint32_t>(t));
  }
  plan.targets = plan.kept;
  return std::vector<HeadPlan>(table.n_kv_heads, plan);
}

struct SelectorOf final : Selector {
  Plans run = keep_earliest;
  Protection protected_tokens{2, 3};
  Protection protection() const override { return protected_tokens; }
  std::vector<HeadPlan> select(const LayerTable& table) const override { return run(table); }
};

// Doubles the first kept value and leaves the others.
HeadMerge double_first(HeadView& head, const HeadPlan& plan) {
  HeadMerge merge;
  merge.values.assign(plan.kept.size() * head.head_dim, 1e30f);
  merge.changed.assign(plan.kept.size(), 0);
  merge.mass_ratio.assign(plan.kept.size(), 1.0f);
  merge.n_merged.assign(plan.kept.size(), 0);
  merge.changed[0] = 1;
  merge.mass_ratio[0] = 3.0f;
  const Half* value = head.entries.values + plan.kept[0] * head.head_dim;
  for (std::size_t c = 0; c < head.head_dim; ++c) merge.values[c] = 2 * to_float(value[c]);
  merge.n_routed = 1;
  merge.n_dropped = 2;
  merge.n_floored = 3;
  return merge;
}

struct MergerOf final : Merger {
  Merging run = double_first;
  HeadMerge merge(HeadView& head, const HeadPlan& plan) const override { return run(head, plan); }
  std::size_t queries_needed(std::size_t) const override { return 0; }
};

struct CompensatorOf final : Compensator {
  float scale = 1.0f;
  bool uses_bias() const override { return scale != 0.0f; }
  bool all_layers = false;
  bool needs_all_layers() const override { return all_layers; }
  // Of all layers at once: beside that, the number of layers.
  std::vector<std::vector<std::vector<float>>> compensate(
      std::span<const LayerEntries> layers) const override {
    const float more = all_layers ? static_cast<float>(layers.size()) : 0.0f;
    std::vector<std::vector<std::vector<float>>> out;
    for (const LayerEntries& layer : layers) {
      out.emplace_back(layer.size());
      for (std::size_t h = 0; h < layer.size(); ++h)
        for (const float ratio : layer[h].mass_ratio)
          out.back()[h].push_back(scale * (ratio - 1.0f) + more);
    }
    return out;
  }
};

// Layers weigh what the test says.
struct BudgetsOf final : LayerBudgets {
  std::function<double(const LayerTable&)> weight = [](const LayerTable&) { return 1.0; };
  bool sees_scores() const override { return true; }
  double weigh(const LayerTable& table) const override { return weight(table); }
  std::vector<double> divide(std::span<const LayerTable> done, std::span<const double> weights,
                             std::size_t n_entries) const override {
    double sum = 0;
    for (const double w : weights) sum += w;
    std::vector<double> out;
    for (std::size_t l = 0; l < done.size(); ++l)
      out.push_back(weights[l] / sum * static_cast<double>(n_entries));
    return out;
  }
};

struct Stages {
  std::shared_ptr<BudgetsOf> layers;
  std::shared_ptr<ScorerOf> scorer = std::make_shared<ScorerOf>();
  std::shared_ptr<SelectorOf> selector = std::make_shared<SelectorOf>();
  std::shared_ptr<MergerOf> merger;
  std::shared_ptr<CompensatorOf> compensator;

  Method method() const {
    return {"made for a test", scorer, selector, layers, merger, compensator, nullptr, nullptr};
  }
};

constexpr LayerShape kShape{{2, 8}, 2, {0.5f, 0.0f}};
constexpr std::size_t kTokens = 100;
constexpr std::size_t kDense = kTokens * 2 * 32;  // bytes of one layer

LayerCase layer_of(std::uint32_t seed = 1, std::size_t n = kTokens) {
  return make_layer(kShape, n, Pattern::kRandom, seed);
}

Condenser condenser_of(const Method& method, const char* keep, std::size_t n_layers = 1,
                       std::size_t fixed_bytes = 0, std::size_t n = kTokens) {
  return Condenser(method, Budget::parse(keep), std::vector<LayerShape>(n_layers, kShape), n, 42,
                   fixed_bytes);
}

std::string rejection(const std::function<void()>& run, ErrorCode code) {
  try {
    run();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  return "accepted";
}

void feed(Condenser& condenser, std::size_t layer, const LayerCase& from) {
  SerialExecutor serial;
  condenser.condense_layer(layer, from.dense, from.observed, serial);
}

std::vector<FrozenLayer> finish(Condenser& condenser) {
  SerialExecutor serial;
  return condenser.finish(serial);
}

FrozenLayer condense(Condenser& condenser, const LayerCase& from) {
  feed(condenser, 0, from);
  return std::move(finish(condenser).at(0));
}

TEST(Condenser, CountsEntriesInBytes) {
  Stages stages;
  // An entry costs 32 bytes and its position.
  EXPECT_EQ(condenser_of(stages.method(), "50%").entries_per_head(), kDense / 2 / 2 / 36);
  EXPECT_EQ(condenser_of(stages.method(), "50").entries_per_head(), kDense / 2 / 2 / 36);
  EXPECT_EQ(condenser_of(stages.method(), "720B").entries_per_head(), 10u);
  EXPECT_EQ(condenser_of(stages.method(), "719B").entries_per_head(), 9u);
  EXPECT_EQ(condenser_of(stages.method(), "1720B", 1, 1000).entries_per_head(), 10u);
  EXPECT_EQ(condenser_of(stages.method(), "1440B", 2).entries_per_head(), 10u);
  stages.merger = std::make_shared<MergerOf>();
  stages.compensator = std::make_shared<CompensatorOf>();
  EXPECT_EQ(condenser_of(stages.method(), "800B").entries_per_head(), 10u);
  stages.compensator->scale = 0.0f;
  EXPECT_EQ(condenser_of(stages.method(), "800B").entries_per_head(), 11u);
}

TEST(Condenser, LayersOfDifferentShapesShareOneBudget) {
  const Stages stages;
  const std::vector<LayerShape> shapes = {kShape, {{1, 64}, 4, {}}, {{3, 16}, 1, {}}};
  // 2 * 36 + 1 * 260 + 3 * 68 bytes for an entry in every head.
  const Condenser condenser(stages.method(), Budget::parse("10720B"), shapes, kTokens, 1);
  EXPECT_EQ(condenser.entries_per_head(), 20u);
  EXPECT_EQ(condenser.report().dense_bytes, kTokens * (2 * 32 + 256 + 3 * 64));
}

TEST(Condenser, KeepsChosenRowsWithTheirBits) {
  const Stages stages;
  const LayerCase layer = layer_of();
  Condenser condenser = condenser_of(stages.method(), "720B");
  const FrozenLayer frozen = condense(condenser, layer);
  EXPECT_EQ(frozen.bytes(), 720u);
  for (std::size_t h = 0; h < 2; ++h) {
    EXPECT_EQ(test::kept_positions(frozen, h),
              (std::vector<std::int32_t>{0, 1, 2, 3, 4, 5, 6, 97, 98, 99}));
    const EntryView from = layer.dense.head(h);
    const test::HeadRows held(frozen, h);
    const EntryView to = held.view();
    EXPECT_EQ(to.bias, nullptr);
    for (std::size_t i = 0; i < 10; ++i) {
      const auto t = static_cast<std::size_t>(frozen.position(h, i));
      EXPECT_TRUE(std::equal(to.keys + i * 8, to.keys + i * 8 + 8, from.keys + t * 8));
      EXPECT_TRUE(std::equal(to.values + i * 8, to.values + i * 8 + 8, from.values + t * 8));
    }
  }
}

TEST(Condenser, PositionsStartWhereTheDenseRowsDo) {
  const Stages stages;
  LayerCase layer = layer_of(1, 40);
  TailRows moved = layer.dense;
  for (int i = 0; i < 5; ++i) moved.grow(1);
  moved.drop_front(5);
  Condenser condenser = condenser_of(stages.method(), "50%", 1, 0, 40);
  SerialExecutor serial;
  const FrozenLayer frozen = test::condense_only(condenser, moved, layer.observed, serial);
  EXPECT_EQ(frozen.position(0, 0), 5);
  EXPECT_EQ(frozen.position(1, frozen.n_entries(1) - 1), 44);
}

TEST(Condenser, WritesOnlyTheValuesThatChanged) {
  Stages stages;
  stages.merger = std::make_shared<MergerOf>();
  stages.compensator = std::make_shared<CompensatorOf>();
  const LayerCase layer = layer_of();
  Condenser condenser = condenser_of(stages.method(), "800B");
  const FrozenLayer frozen = condense(condenser, layer);
  EXPECT_EQ(frozen.bytes(), 800u);
  const EntryView from = layer.dense.head(1);
  const test::HeadRows held(frozen, 1);
  const EntryView to = held.view();
  for (std::size_t c = 0; c < 8; ++c)
    EXPECT_EQ(to.values[c], to_half(2 * to_float(from.values[c])));
  EXPECT_TRUE(std::equal(to.values + 8, to.values + 7 * 8, from.values + 8));
  EXPECT_TRUE(std::equal(to.keys, to.keys + 7 * 8, from.keys));
  ASSERT_NE(to.bias, nullptr);
  EXPECT_EQ(to.bias[0], 2.0f);
  EXPECT_EQ(to.bias[1], 0.0f);
  EXPECT_EQ(condenser.report().n_routed, 2u);
  EXPECT_EQ(condenser.report().n_dropped, 4u);
  EXPECT_EQ(condenser.report().n_floored, 6u);
}

TEST(Condenser, ReportsLiveBytesOfEveryLayer) {
  const Stages stages;
  Condenser condenser = condenser_of(stages.method(), "25%", 3);
  std::size_t bytes = 0;
  for (std::uint32_t l = 0; l < 3; ++l) feed(condenser, l, layer_of(l + 1));
  for (const FrozenLayer& frozen : finish(condenser)) bytes += frozen.bytes();
  const CompressionReport& report = condenser.report();
  EXPECT_EQ(report.method, "made for a test");
  EXPECT_EQ(report.keep, "25%");
  EXPECT_FALSE(report.skipped.has_value());
  EXPECT_EQ(report.n_tokens, kTokens);
  EXPECT_EQ(report.dense_bytes, 3 * kDense);
  EXPECT_EQ(report.kept_bytes, bytes);
  EXPECT_LE(report.kept_bytes, report.dense_bytes / 4);
  ASSERT_EQ(report.entries.size(), 3u);
  for (const auto& heads : report.entries)
    EXPECT_EQ(heads, (std::vector<std::size_t>(2, condenser.entries_per_head())));
  EXPECT_GT(report.compress_ms(), 0.0);
}

TEST(Condenser, LeavesTheCacheWholeWhenThereIsNothingToDo) {
  Stages stages;
  struct Case {
    Method method;
    const char* keep;
    std::size_t n;
    const char* skipped;  // nullptr: not skipped
  };
  const std::vector<Case> cases = {
      {Method{"full", {}, {}, {}, {}, {}, {}, {}}, "1%", kTokens, nullptr},
      {stages.method(), "100%", kTokens, "covers the whole cache"},
      {stages.method(), "100", kTokens, "covers the whole cache"},
      {stages.method(), "1GiB", kTokens, "covers the whole cache"},
      {stages.method(), "10%", 5,
       "the prompt (5 tokens) is not longer than the protected tokens "
       "(2 first + 3 last)"},
      {stages.method(), "10%", 1, "the prompt (1 tokens)"},
  };
  for (const Case& c : cases) {
    const LayerCase layer = layer_of(3, c.n);
    Condenser condenser = condenser_of(c.method, c.keep, 1, 0, c.n);
    EXPECT_TRUE(condenser.keeps_everything());
    EXPECT_EQ(condenser.observation().n_queries, 0u);
    EXPECT_EQ(condenser.entries_per_head(), c.n);
    SerialExecutor serial;
    const FrozenLayer frozen =
        test::condense_only(condenser, layer.dense, ObservedQueries{}, serial);
    EXPECT_EQ(fingerprint(frozen), fingerprint(FrozenLayer::from_tail(layer.dense)));
    EXPECT_EQ(condenser.report().kept_bytes, condenser.report().dense_bytes);
    ASSERT_EQ(condenser.report().skipped.has_value(), c.skipped != nullptr) << c.keep;
    if (c.skipped != nullptr) {
      EXPECT_NE(condenser.report().skipped->find(c.skipped), std::string::npos)
          << *condenser.report().skipped;
    }
  }
}

TEST(Condenser, AModelWithoutCompressibleLayersIsSkipped) {
  const Stages stages;
  const Condenser condenser(stages.method(), Budget::parse("10%"), {}, kTokens, 1);
  EXPECT_TRUE(condenser.keeps_everything());
  EXPECT_TRUE(condenser.report().skipped.has_value());
}

TEST(Condenser, OneTokenBeyondTheProtectedOnesIsCompressed) {
  const Stages stages;
  const LayerCase layer = layer_of(3, 6);
  Condenser condenser = condenser_of(stages.method(), "95%", 1, 0, 6);
  ASSERT_FALSE(condenser.keeps_everything());
  EXPECT_EQ(test::kept_positions(condense(condenser, layer), 0),
            (std::vector<std::int32_t>{0, 1, 3, 4, 5}));
}

TEST(Condenser, ImpossibleBudgetsNameBothNumbersAndAWayOut) {
  Stages stages;
  const auto reject = [&](const char* keep, std::size_t fixed = 0) {
    return rejection([&] { condenser_of(stages.method(), keep, 1, fixed); },
                     ErrorCode::kInvalidArgument);
  };
  std::string message = reject("4%");  // 256 bytes: 3 entries
  EXPECT_NE(message.find("leaves 3 entries"), std::string::npos) << message;
  EXPECT_NE(message.find("5 are needed (2 first + 3 last"), std::string::npos) << message;
  EXPECT_NE(message.find("raise --keep to 5.7% or more"), std::string::npos) << message;
  EXPECT_EQ(condenser_of(stages.method(), "5.7%").entries_per_head(), 5u);
  message = reject("1300B", 1000);
  EXPECT_NE(message.find("raise --keep to 1360B or more"), std::string::npos) << message;
  EXPECT_EQ(condenser_of(stages.method(), "1360B", 1, 1000).entries_per_head(), 5u);
  message = reject("999B", 1000);
  EXPECT_NE(message.find("999 bytes"), std::string::npos) << message;
  EXPECT_NE(message.find("take 1000"), std::string::npos) << message;
  stages.selector->protected_tokens = {0, 0};
  message = reject("1B");
  EXPECT_NE(message.find("leaves 0 entries"), std::string::npos) << message;
  EXPECT_NE(message.find("1 are needed"), std::string::npos) << message;
  EXPECT_NE(
      rejection([&] { condenser_of(stages.method(), "10%", 1, 0, 0); }, ErrorCode::kInvalidArgument)
          .find("0 tokens"),
      std::string::npos);
}

TEST(Condenser, SameBitsForAnyNumberOfWorkers) {
  Stages stages;
  stages.scorer->queries = 16;
  stages.scorer->run = [](HeadView& head, std::span<float> scores) {
    const std::span<const float> mass = head.window_mass(16);
    std::copy(mass.begin(), mass.end(), scores.begin());
  };
  stages.merger = std::make_shared<MergerOf>();
  stages.compensator = std::make_shared<CompensatorOf>();
  const LayerShape shape{{8, 16}, 2, {0.25f, 0.0f}};
  const LayerCase layer = make_layer(shape, 200, Pattern::kRandom, 9);
  std::string first;
  for (const std::size_t workers : {1u, 2u, 4u, 16u}) {
    Condenser condenser(stages.method(), Budget::parse("30%"), {shape}, 200, 42);
    test::ThreadExecutor executor(workers);
    const std::string bits =
        fingerprint(test::condense_only(condenser, layer.dense, layer.observed, executor));
    if (first.empty()) first = bits;
    EXPECT_EQ(bits, first) << workers;
  }
}

TEST(Condenser, HeadsSeeTheirOwnDataAndSeed) {
  Stages stages;
  stages.scorer->queries = 4;
  std::vector<std::uint64_t> seeds;
  stages.scorer->run = [&](HeadView& head, std::span<float> scores) {
    seeds.push_back(head.seed);
    EXPECT_EQ(head.n_layers, 2u);
    EXPECT_EQ(head.n_kv_heads, 2u);
    EXPECT_EQ(head.n_queries, kTokens);
    std::fill(scores.begin(), scores.end(), 0.0f);
  };
  for (const std::uint64_t seed : {1u, 2u}) {
    Condenser condenser(stages.method(), Budget::parse("30%"), {kShape, kShape}, kTokens, seed);
    EXPECT_EQ(condenser.observation().n_queries, 4u);
    feed(condenser, 0, layer_of());
    feed(condenser, 1, layer_of());
  }
  ASSERT_EQ(seeds.size(), 8u);
  std::sort(seeds.begin(), seeds.end());
  EXPECT_EQ(std::unique(seeds.begin(), seeds.end()), seeds.end());
}

TEST(Condenser, ScoresThatAreNotFiniteAreReportedWithTheirPlace) {
  Stages stages;
  stages.scorer->run = [](HeadView& head, std::span<float> scores) {
    std::fill(scores.begin(), scores.end(), 0.0f);
    if (head.head == 1) scores[17] = std::numeric_limits<float>::quiet_NaN();
  };
  Condenser condenser = condenser_of(stages.method(), "30%");
  const std::string message =
      rejection([&] { condense(condenser, layer_of()); }, ErrorCode::kInternal);
  EXPECT_NE(message.find("token 17 in layer 0, head 1"), std::string::npos) << message;
}

TEST(Condenser, BiasesThatAreNotFiniteAreReported) {
  Stages stages;
  stages.merger = std::make_shared<MergerOf>();
  stages.compensator = std::make_shared<CompensatorOf>();
  stages.compensator->scale = std::numeric_limits<float>::infinity();
  Condenser condenser = condenser_of(stages.method(), "30%");
  const std::string message =
      rejection([&] { condense(condenser, layer_of()); }, ErrorCode::kInternal);
  EXPECT_NE(message.find("a bias in layer 0"), std::string::npos) << message;
}

TEST(Condenser, CancelStopsInEveryStage) {
  for (const char* stage : {"start", "score", "select", "merge"}) {
    CancelFlag cancel{false};
    const auto raise_in = [&](const char* here) {
      if (std::string(stage) == here) cancel = true;
    };
    Stages stages;
    stages.scorer->run = [&](HeadView&, std::span<float> scores) {
      std::fill(scores.begin(), scores.end(), 0.0f);
      raise_in("score");
    };
    stages.selector->run = [&](const LayerTable& table) {
      EXPECT_NE(std::string(stage), "score");
      raise_in("select");
      return keep_earliest(table);
    };
    stages.merger = std::make_shared<MergerOf>();
    stages.merger->run = [&](HeadView& head, const HeadPlan& plan) {
      EXPECT_NE(std::string(stage), "select");
      raise_in("merge");
      return double_first(head, plan);
    };
    raise_in("start");
    const LayerCase layer = layer_of();
    Condenser condenser = condenser_of(stages.method(), "30%");
    SerialExecutor serial;
    EXPECT_NE(
        rejection(
            [&] { test::condense_only(condenser, layer.dense, layer.observed, serial, &cancel); },
            ErrorCode::kCancelled)
            .find("cancelled"),
        std::string::npos)
        << stage;
  }
}

// Layers give up entries when heavier ones come; merged values and biases stay with the entries
// that are left, whatever the row types.
TEST(Condenser, LayersGiveUpEntriesForLaterOnes) {
  for (const bool all_layers : {false, true}) {
    Stages stages;
    stages.layers = std::make_shared<BudgetsOf>();
    stages.layers->weight = [](const LayerTable& table) {
      EXPECT_EQ(table.scores[0], static_cast<float>(table.layer));
      return static_cast<double>(1 + 3 * table.layer);
    };
    stages.scorer->run = [](HeadView& head, std::span<float> scores) {
      std::fill(scores.begin(), scores.end(), static_cast<float>(head.layer));
    };
    stages.merger = std::make_shared<MergerOf>();
    stages.compensator = std::make_shared<CompensatorOf>();
    stages.compensator->all_layers = all_layers;
    Condenser condenser = condenser_of(stages.method(), "4000B", 2);  // 100 entries
    condenser.report_details();
    feed(condenser, 0, layer_of(1));
    feed(condenser, 1, layer_of(2));
    const std::vector<FrozenLayer> frozen = finish(condenser);
    const CompressionReport& report = condenser.report();
    EXPECT_EQ(report.entries, (std::vector<std::vector<std::size_t>>{{10, 10}, {40, 40}}));
    EXPECT_EQ(report.kept_bytes, 4000u);
    // All 100 entries were held of the first layer at first, and a score for each token and head.
    EXPECT_GT(report.most_held_bytes, 100u * 32 + 800);
    EXPECT_LT(report.most_held_bytes, 100u * 60 + 1600);
    for (std::uint32_t l = 0; l < 2; ++l) {
      const test::HeadRows held(frozen[l], 1);
      const EntryView view = held.view();
      const LayerCase layer = layer_of(l + 1);
      const EntryView from = layer.dense.head(1);
      EXPECT_EQ(view.bias[0], all_layers ? 4.0f : 2.0f);
      EXPECT_EQ(view.bias[1], all_layers ? 2.0f : 0.0f);
      for (std::size_t c = 0; c < 8; ++c)
        EXPECT_EQ(view.values[c], to_half(2 * to_float(from.values[c])));
      for (std::size_t i = 1; i < view.n; ++i) {
        const auto t = static_cast<std::size_t>(frozen[l].position(1, i));
        EXPECT_TRUE(std::equal(view.keys + i * 8, view.keys + i * 8 + 8, from.keys + t * 8));
      }
      EXPECT_EQ(report.mass_ratios[l][1].size(), view.n);
    }
  }
}

TEST(CondenserDeathTest, CallsOutOfOrderAreBugs) {
  const Stages stages;
  const LayerCase layer = layer_of();
  Condenser condenser = condenser_of(stages.method(), "30%", 2);
  EXPECT_DEATH(feed(condenser, 1, layer), "layer 1, expected 0");
  feed(condenser, 0, layer);
  EXPECT_DEATH(feed(condenser, 0, layer), "layer 0, expected 1");
  EXPECT_DEATH(finish(condenser), "1 of 2 layers");
  feed(condenser, 1, layer);
  EXPECT_DEATH(feed(condenser, 2, layer), "check failed");
  finish(condenser);
  EXPECT_DEATH(finish(condenser), "check failed");
}

TEST(CondenserDeathTest, ACancelledCondenserIsSpent) {
  const Stages stages;
  const LayerCase layer = layer_of();
  Condenser condenser = condenser_of(stages.method(), "30%");
  CancelFlag cancel{true};
  SerialExecutor serial;
  EXPECT_THROW(test::condense_only(condenser, layer.dense, layer.observed, serial, &cancel), Error);
  EXPECT_DEATH(condense(condenser, layer), "check failed");
}

TEST(CondenserDeathTest, InputsThatDisagreeAreBugs) {
  Stages stages;
  stages.scorer->queries = 10;
  Condenser condenser = condenser_of(stages.method(), "30%");
  LayerCase layer = layer_of();
  EXPECT_DEATH(condense(condenser, layer_of(1, 99)), "99 vs 100");
  layer.observed.n_tokens = 9;
  EXPECT_DEATH(condense(condenser, layer), "9 queries and blocks of 0 captured, needed 10");
  layer.observed.n_tokens = 100;
  layer.observed.log_sum_exp.pop_back();
  EXPECT_DEATH(condense(condenser, layer), "check failed");
  layer = layer_of();
  layer.observed.block = 32;
  EXPECT_DEATH(condense(condenser, layer), "0 for blocks of 32");
  layer = make_layer({{2, 16}, 2, {}}, kTokens, Pattern::kRandom, 1);
  EXPECT_DEATH(condense(condenser, layer), "another shape");
}

TEST(CondenserDeathTest, PlansThatBreakTheirContractAreBugs) {
  const LayerCase layer = layer_of();
  const auto run = [&](const std::function<void(std::vector<HeadPlan>&)>& damage) {
    Stages stages;
    stages.selector->run = [&](const LayerTable& table) {
      std::vector<HeadPlan> plans = keep_earliest(table);
      damage(plans);
      return plans;
    };
    Condenser condenser = condenser_of(stages.method(), "720B");
    condense(condenser, layer);
  };
  run([](auto&) {});
  EXPECT_DEATH(run([](auto& plans) { plans.pop_back(); }), "1 vs 2");
  EXPECT_DEATH(run([](auto& plans) { std::swap(plans[1].kept[3], plans[1].kept[4]); }), "head 1");
  EXPECT_DEATH(run([](auto& plans) { plans[0].kept[3] = plans[0].kept[4]; }), "head 0");
  EXPECT_DEATH(run([](auto& plans) { plans[0].kept.back() = 100; }), "100 of 100");
  EXPECT_DEATH(run([](auto& plans) { plans[0].targets[5] = 50; }), "head 0");
  EXPECT_DEATH(run([](auto& plans) {
                 plans[0].targets.clear();
                 plans[0].kept.erase(plans[0].kept.begin());
               }),
               "4 protected tokens kept of 5");
  EXPECT_DEATH(run([](auto& plans) { plans[0].kept.insert(plans[0].kept.begin() + 7, 50); }),
               "21 > 20");
}

TEST(Condenser, ASelectorMayShareTheBudgetUnevenly) {
  Stages stages;
  stages.selector->run = [](const LayerTable& table) {
    std::vector<HeadPlan> plans = keep_earliest(table);
    // Moves a token's worth from head 1 to head 0.
    plans[0].kept.insert(plans[0].kept.begin() + 7, 50);
    plans[1].kept.erase(plans[1].kept.begin() + 6);
    plans[1].targets = plans[1].kept;
    return plans;
  };
  Condenser condenser = condenser_of(stages.method(), "720B");
  const FrozenLayer frozen = condense(condenser, layer_of());
  EXPECT_EQ(frozen.n_entries(0), 11u);
  EXPECT_EQ(frozen.n_entries(1), 9u);
  EXPECT_EQ(frozen.bytes(), 720u);
}

}  // namespace
}  // namespace precis
