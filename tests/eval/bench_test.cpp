// Bench rows: figures by hand, and whole runs on a tiny model with a clock of our own.
#include "eval/bench.h"

#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "eval/bench_figures.h"
#include "eval/bench_growth.h"
#include "eval/statistics.h"
#include "eval/synthetic_cache.h"
#include "methods/registry.h"
#include "support/head_rows.h"
#include "support/test_models.h"

namespace precis::test {
namespace {

BenchMethod method(const std::string& spec, const std::string& keep = "25%") {
  return {builtin_methods().parse(spec), Budget::parse(keep), spec, {}, 1};
}

// Each reading is a millisecond after the last: a run takes exactly 1 ms.
Clock ticking() {
  auto now = std::make_shared<double>(0);
  return [now] { return *now += 1e-3; };
}

class BenchRun : public testing::Test {
 protected:
  void SetUp() override {
    engine_ = Engine::load(tiny_model("llama"), {.n_threads = 1});
    options_.methods = {method("full"), method("selkv"), method("snapkv", "40%")};
    options_.depths = {0, 300};
    options_.prompts = {128, 96};
    options_.answers = {4};
    options_.turns = {1, 3, {}};
    options_.seed = 3;
  }
  std::vector<BenchRow> run() { return run_bench(engine_, options_, {20, 10}, ticking()); }
  std::string refused() {
    try {
      run();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return error.what();
    }
    ADD_FAILURE() << "nothing was refused";
    return "";
  }

  std::shared_ptr<const Engine> engine_;
  BenchOptions options_;
};

TEST_F(BenchRun, HasARowForEveryCombination) {
  std::vector<std::string> names;
  for (const BenchRow& row : run()) {
    names.push_back(row.test_name() + " " + row.label);
    EXPECT_EQ(row.seconds.size(), 3u);
    EXPECT_EQ(row.ratios.size(), 3u);
    EXPECT_FALSE(row.synthetic);
    EXPECT_EQ(row.read_bandwidth_gb_s, 10.0);
  }
  EXPECT_EQ(names,
            (std::vector<std::string>{"pp128 full", "pp128 selkv", "pp128 snapkv", "pp96 full",
                                      "pp96 selkv", "pp96 snapkv", "tg4 full", "pp128 @ d300 full",
                                      "pp128 @ d300 selkv", "pp128 @ d300 snapkv",
                                      "pp96 @ d300 full", "pp96 @ d300 selkv", "pp96 @ d300 snapkv",
                                      "tg4 @ d300 full", "tg4 @ d300 selkv", "tg4 @ d300 snapkv"}));
}

TEST_F(BenchRun, TimesAreTheClocksAndBytesAreTheSessions) {
  for (const BenchRow& row : run()) {
    for (const double s : row.seconds) EXPECT_NEAR(s, 1e-3, 1e-9) << row.test_name();
    EXPECT_NEAR(row.speeds().front(), 1e3 * static_cast<double>(row.n_prompt + row.n_gen), 1e-3);
    EXPECT_NEAR(median_of(row.ratios), 1, 1e-9);
    const std::size_t n = row.n_depth > 0 ? row.n_depth : row.n_prompt;
    const std::size_t dense = n * engine_->config().kv_bytes_per_token();
    if (row.label == "full") {
      EXPECT_EQ(row.kv_bytes, dense) << row.test_name();
    } else {
      const double share = row.label == "selkv" ? 0.25 : 0.40;
      EXPECT_LE(row.kv_bytes, share * static_cast<double>(dense)) << row.test_name();
      EXPECT_GT(row.kv_bytes, 0.9 * share * static_cast<double>(dense)) << row.test_name();
    }
    EXPECT_EQ(row.gb_per_s.has_value(), row.n_gen > 0);
    EXPECT_EQ(row.bound_share.has_value(), row.n_gen > 0 && row.n_depth > 0 && row.label != "full");
    EXPECT_EQ(row.compress_ms.value_or(0) > 0, n > 0) << row.test_name();
    if (row.n_depth == 0 && row.n_prompt > 0) {
      EXPECT_NEAR(*row.ttft_ms, 1, 1e-6);
    }
  }
}

TEST_F(BenchRun, SyntheticDepthsHoldWhatTheMethodWouldKeep) {
  options_.synthetic = true;
  options_.depths = {5000};  // five times the model's context
  options_.prompts = {};
  const std::size_t dense = 5000 * engine_->config().kv_bytes_per_token();
  std::map<std::string, std::size_t> bytes;
  for (const BenchRow& row : run()) {
    EXPECT_TRUE(row.synthetic);
    EXPECT_FALSE(row.compress_ms || row.ttft_ms || row.break_even_prompt);
    bytes[row.label] = row.kv_bytes;
  }
  EXPECT_EQ(bytes["full"], dense);
  const auto share = [&](const char* label) {
    return static_cast<double>(bytes[label]) / static_cast<double>(dense);
  };
  EXPECT_LE(share("selkv"), 0.25);
  EXPECT_GT(share("selkv"), 0.249);
  EXPECT_LE(share("snapkv"), 0.40);
  EXPECT_GT(share("snapkv"), 0.399);
}

TEST(BenchRowTypes, RowsOfAllTypesAreMeasuredInTurns) {
  const auto engine = Engine::load(test::tiny_model("llama-hd64"), {.n_threads = 1});
  const Method full = builtin_methods().parse("full");
  const RowTypes q8{RowType::kQ8_0, RowType::kQ8_0};
  const RowTypes q4{RowType::kQ4, RowType::kQ4};
  BenchOptions options;
  for (const RowTypes& rows : {RowTypes{}, q8, q4})
    options.methods.push_back({full, {}, "full", rows, 1});
  options.answers = {3};
  options.depths = {320};
  options.turns.repetitions = 2;
  for (const bool synthetic : {false, true}) {
    options.synthetic = synthetic;
    const auto rows = run_bench(engine, options, {}, steady_clock());
    ASSERT_EQ(rows.size(), 3u);
    // 64 channels: 128 bytes a row in f16, 68 in q8_0, 40 in q4.
    EXPECT_EQ(rows[1].kv_bytes, rows[0].kv_bytes / 128 * 68);
    // Read for real, a layer's keys may have to be finer.
    EXPECT_GE(rows[2].kv_bytes, rows[0].kv_bytes / 128 * 40);
    EXPECT_LE(rows[2].kv_bytes, rows[0].kv_bytes / 128 * (synthetic ? 40 : 68));
    EXPECT_EQ(rows[1].type_k, "q8_0");
    EXPECT_EQ(rows[2].type_v, "q4");
  }
}

TEST(BenchSessions, SessionsThatDecodeTogetherHaveTheirOwnCaches) {
  const auto engine = Engine::load(test::tiny_model("llama"), {.n_threads = 1});
  BenchOptions options;
  for (const std::size_t n : {1u, 3u})
    options.methods.push_back({builtin_methods().parse("full"), {}, "full", {}, n});
  options.answers = {4};
  options.prompts = {64};
  options.depths = {0, 100};
  options.turns.repetitions = 2;
  const auto rows = run_bench(engine, options, {}, steady_clock());
  std::vector<std::string> names;
  for (const BenchRow& row : rows)
    names.push_back(row.test_name() + " x" + std::to_string(row.n_sessions));
  EXPECT_EQ(names, (std::vector<std::string>{"pp64 x1", "tg4 x1", "tg4 x3", "pp64 @ d100 x1",
                                             "tg4 @ d100 x1", "tg4 @ d100 x3"}));
  EXPECT_EQ(rows[5].kv_bytes, 3 * rows[4].kv_bytes);
  // Tokens of all sessions count.
  EXPECT_NEAR(rows[5].speeds()[0] * rows[5].seconds[0], 12, 1e-9);
  EXPECT_NEAR(rows[5].ratios[0], 3 * rows[4].seconds[0] / rows[5].seconds[0], 1e-9);
}

TEST_F(BenchRun, RefusesWhatCannotBeMeasured) {
  options_.depths = {1000};
  EXPECT_NE(refused().find("1024"), std::string::npos);
  EXPECT_NE(refused().find("--synthetic"), std::string::npos);
  options_.depths = {100};
  options_.text = std::vector<Token>(50, 5);
  EXPECT_NE(refused().find("50 tokens"), std::string::npos);
  options_.text.clear();
  options_.prompts = options_.answers = {0};
  EXPECT_NE(refused().find("no test"), std::string::npos);
  options_.prompts = {8};
  options_.depths = {0};
  options_.prompts = {128, 30};
  EXPECT_NE(refused().find("protected"), std::string::npos);
  options_.methods.clear();
  EXPECT_NE(refused().find("method"), std::string::npos);
}

TEST_F(BenchRun, SyntheticLayersFollowTheSeed) {
  const CondenseRequest req{options_.methods[1].method, options_.methods[1].budget, 9, {}};
  const auto a = synthetic_layers(*engine_, req, 400);
  const auto b = synthetic_layers(*engine_, req, 400);
  CondenseRequest other = req;
  other.seed = 10;
  const auto c = synthetic_layers(*engine_, other, 400);
  const std::size_t d = engine_->config().head_dim;
  double sum = 0;
  double squares = 0;
  std::size_t n = 0;
  bool differs = false;
  for (std::size_t il = 0; il < a.size(); ++il) {
    for (std::size_t h = 0; h < engine_->config().n_kv_heads; ++h) {
      const HeadRows x(*a[il], h), y(*b[il], h), z(*c[il], h);
      ASSERT_NE(x.bias, nullptr);
      for (std::size_t e = 1; e < x.n; ++e)
        ASSERT_LT(a[il]->position(h, e - 1), a[il]->position(h, e));
      ASSERT_LT(a[il]->position(h, x.n - 1), 400);
      for (std::size_t i = 0; i < x.n * d; ++i) {
        ASSERT_EQ(x.keys[i].bits, y.keys[i].bits);
        differs = differs || x.keys[i].bits != z.keys[i].bits;
        sum += to_float(x.values[i]);
        squares += to_float(x.values[i]) * to_float(x.values[i]);
        ++n;
      }
    }
  }
  EXPECT_TRUE(differs);
  EXPECT_NEAR(sum / static_cast<double>(n), 0, 0.1);
  EXPECT_NEAR(squares / static_cast<double>(n), 1, 0.1);
}

TEST_F(BenchRun, SyntheticPositionsLeaveRoom) {
  const ModelConfig& c = engine_->config();
  EXPECT_EQ(synthetic_position(c, 10), c.n_ctx_train / 2);
  EXPECT_EQ(synthetic_position(c, c.n_ctx_train - 4), 4u);
  EXPECT_THROW(synthetic_position(c, c.n_ctx_train), Error);
}

TEST_F(BenchRun, GrowthHasEverySeries) {
  GrowthOptions options;
  options.entries = {500, 2000, 4000};
  options.prompts = {200, 400};
  options.condense = {options_.methods[1].method, options_.methods[1].budget, 1, {}};
  options.n_gen = 2;
  options.turns = {1, 2, {}};
  options.memory_bytes = 4000 * 2 * engine_->config().kv_bytes_per_token() /
                         engine_->config().n_layers;  // rows of two layers
  const Growth growth = measure_growth(engine_, options, ticking());
  std::map<std::string, std::vector<std::size_t>> sizes;
  for (const GrowthPoint& p : growth.points) {
    sizes[p.series].push_back(p.n);
    if (p.series != "decode") continue;
    EXPECT_NEAR(p.measured, 0.5, 1e-9);  // a millisecond for two tokens
    EXPECT_EQ(p.n_distinct_layers, p.n == 4000 ? 2u : 0u) << p.n;
  }
  EXPECT_EQ(sizes["decode"], options.entries);
  EXPECT_EQ(sizes["compress"], options.prompts);
  EXPECT_EQ(sizes["prefill"], options.prompts);
  ASSERT_FALSE(growth.series.empty());
  EXPECT_EQ(growth.series.front().name, "decode");
  EXPECT_NEAR(growth.series.front().fit.constant, 0.5, 1e-6);
  EXPECT_NEAR(growth.series.front().fit.worst_residual, 0, 1e-6);
  options.condense.method = builtin_methods().parse("full");
  EXPECT_THROW(measure_growth(engine_, options, ticking()), Error);
}

BenchRow decode_row(const char* method, std::size_t depth, std::size_t kv_bytes,
                    std::vector<double> seconds) {
  BenchRow row;
  row.label = row.method = method;
  row.keep = "25%";
  row.n_gen = 10;
  row.n_depth = depth;
  row.kv_bytes = kv_bytes;
  row.seconds = std::move(seconds);
  row.read_bandwidth_gb_s = 10;
  return row;
}

// Weights 100 MB, 1 MB a token; full: 1 GB at the depth + 5 MB of growth, condensed: 245 + 5 MB.
TEST(BenchFigures, AgreeWithHandComputedNumbers) {
  const StepBytes bytes{100'000'000, 1'000'000};
  std::vector<BenchRow> rows = {decode_row("full", 1000, 1'000'000'000, {2.0, 4.0, 2.2}),
                                decode_row("kept", 1000, 245'000'000, {0.8, 1.0, 1.1})};
  add_figures(rows, bytes);
  EXPECT_NEAR(*rows[0].gb_per_s, 1.105 * 10 / 2.2, 1e-9);
  EXPECT_NEAR(*rows[0].share_of_bandwidth, 1.105 / 2.2, 1e-9);
  EXPECT_FALSE(rows[0].bound_share);
  EXPECT_NEAR(*rows[1].gb_per_s, 0.350 * 10 / 1.0, 1e-9);
  // Pairs: 2.5, 4, 2. The bytes allow 1.105 / 0.350 = 3.157.
  EXPECT_NEAR(*rows[1].bound_share, 2.5 / (1.105 / 0.350), 1e-9);

  std::vector<BenchRow> alone = {decode_row("kept", 1000, 245'000'000, {1, 1, 1})};
  add_figures(alone, bytes);
  EXPECT_TRUE(alone[0].gb_per_s);
  EXPECT_FALSE(alone[0].bound_share);
}

// 1 s a GB in a step, no constant; condensing 0.5 s + 1 ms a token; a prompt token is 1 MB full and
// a quarter of it kept, so 10 answer tokens save 7.5 ms a prompt token: 0.5 / 6.5e-3 = 76.9.
TEST(BenchFigures, BreakEvenNeedsTwoSizes) {
  const StepBytes bytes{0, 0};
  std::vector<BenchRow> rows = {decode_row("full", 1000, 1'000'000'000, {10}),
                                decode_row("kept", 1000, 250'000'000, {2.5})};
  rows[1].compress_ms = 1500;
  add_break_even(rows, bytes);
  EXPECT_FALSE(rows[1].break_even_prompt);  // condensing was timed at one size only
  BenchRow prompt;
  prompt.method = "kept";
  prompt.keep = "25%";
  prompt.n_prompt = 500;
  prompt.compress_ms = 1000;
  rows.push_back(prompt);
  add_break_even(rows, bytes);
  EXPECT_EQ(rows[1].break_even_prompt, std::size_t{77});
  EXPECT_FALSE(rows[0].break_even_prompt || rows[2].break_even_prompt);
  // Condensing at 3 ms a token, and 2 answer tokens save only 1.5.
  rows[2].compress_ms = 1500;
  rows[1].compress_ms = 3000;
  rows[0].n_gen = rows[1].n_gen = 2;
  rows[0].seconds = {2};
  rows[1].seconds = {0.5};
  add_break_even(rows, bytes);
  EXPECT_EQ(rows[1].break_even_prompt, SIZE_MAX);
}

}  // namespace
}  // namespace precis::test
