// Which samples the suites ask, in which order, and that shards share them out.
#include "eval/task_suites.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "base/error.h"
#include "methods/registry.h"
#include "support/test_models.h"

namespace precis::test {
namespace {

class TaskSuites : public testing::Test {
 protected:
  void SetUp() override {
    engine_ = Engine::load(tiny_model("qwen2"), {.n_threads = 1, .matmul = MatmulMode::kSgemm});
    options_.methods = {{builtin_methods().parse("snapkv"), Budget::parse("50%"), "snapkv", {}}};
  }
  // Every unit once, in the order of the suite, whatever the number of shards.
  void check_shards(const Suite& suite) const {
    for (const std::size_t n : {2u, 3u}) {
      std::size_t n_units = 0;
      for (std::size_t s = 1; s <= n; ++s) {
        const Suite shard = shard_of(suite, s, n);
        n_units += shard.units.size();
        for (std::size_t i = 0; i < shard.units.size(); ++i)
          EXPECT_EQ(shard.units[i], suite.units[i * n + s - 1]);
      }
      EXPECT_EQ(n_units, suite.units.size());
    }
  }
  void check_run(const Suite& suite, std::size_t unit) const {
    const EvalRows rows = suite.run(unit, options_);
    EXPECT_EQ(rows.rows.size(), suite.count(unit, options_));
    for (const ResultRow& row : rows.rows) EXPECT_EQ(unit_of(*key_of(row)), suite.units[unit]);
    const EvalRows again = suite.run(unit, options_);
    for (std::size_t i = 0; i < rows.rows.size(); ++i)
      EXPECT_EQ(print_row(rows.rows[i]), print_row(again.rows[i]));
  }
  static std::string refusal(const std::function<void()>& make) {
    try {
      make();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
      return e.what();
    }
    ADD_FAILURE() << "nothing was refused";
    return {};
  }
  std::shared_ptr<const Engine> engine_;
  EvalOptions options_;
};

TEST_F(TaskSuites, RulerAsksAllTasksAndLengthsInTurn) {
  RulerOptions wanted;
  wanted.tasks = {"vt", "niah_single_2", "fwe"};
  wanted.lengths = {700, 900};
  wanted.n_samples = 2;
  const Suite suite = ruler_suite(engine_, wanted);
  ASSERT_EQ(suite.left_out.size(), 1u);
  EXPECT_EQ(suite.left_out[0].find("niah_single_2: "), 0u);
  ASSERT_EQ(suite.units.size(), 8u);
  for (std::size_t i = 0; i < 8; ++i) {
    const UnitKey expected{"ruler", i % 2 == 0 ? "vt" : "fwe", i / 2 % 2 == 0 ? 700u : 900u, i / 4};
    EXPECT_EQ(suite.units[i], expected) << i;
  }
  check_shards(suite);
  check_run(suite, 3);
  wanted.tasks = {"niah_single_2"};
  EXPECT_NE(refusal([&] { ruler_suite(engine_, wanted); }).find("--essay"), std::string::npos);
  wanted.tasks = {"nosuch"};
  EXPECT_NE(refusal([&] { ruler_suite(engine_, wanted); }).find("nosuch"), std::string::npos);
  wanted.lengths = {5000};
  EXPECT_NE(refusal([&] { ruler_suite(engine_, wanted); }).find("1024"), std::string::npos);
}

TEST_F(TaskSuites, NeedlesStandAtEveryDepth) {
  NeedleOptions wanted;
  wanted.lengths = {700, 800};
  wanted.depths = {0, 12.5, 100};
  wanted.n_samples = 2;
  const Suite suite = needle_suite(engine_, wanted);
  ASSERT_EQ(suite.units.size(), 12u);
  EXPECT_EQ(suite.units[1].task, "needle_depth_12.5");
  EXPECT_EQ(suite.units[3].length, 800u);
  check_shards(suite);
  check_run(suite, 1);
  for (const double depth : {-1.0, 100.5, std::numeric_limits<double>::quiet_NaN()}) {
    wanted.depths = {depth};
    refusal([&] { needle_suite(engine_, wanted); });
  }
}

TEST_F(TaskSuites, LongBenchAsksItsFilesInTurn) {
  LongBenchOptions wanted;
  wanted.files = list_longbench_files(std::string(PRECIS_TASK_DATA) + "/longbench");
  wanted.prompts = default_longbench_prompts();
  wanted.limit_tokens = 300;
  ASSERT_EQ(wanted.files.size(), 16u);
  const Suite suite = longbench_suite(engine_, wanted);
  ASSERT_EQ(suite.units.size(), 32u);
  EXPECT_EQ(suite.units[16].task, suite.units[0].task);
  EXPECT_EQ(suite.units[16].index, 1u);
  check_shards(suite);
  check_run(suite, 17);
  wanted.n_samples = 1;
  EXPECT_EQ(longbench_suite(engine_, wanted).units.size(), 16u);
  // Without a limit the prompt gets what the model's context has.
  wanted.limit_tokens = 0;
  wanted.files = {wanted.files[0]};
  check_run(longbench_suite(engine_, wanted), 0);
  wanted.files.push_back(wanted.files[0]);
  EXPECT_NE(refusal([&] { longbench_suite(engine_, wanted); }).find("two files"),
            std::string::npos);
}

TEST_F(TaskSuites, OwnQuestionsShareOneDocument) {
  AskOptions wanted;
  wanted.name = "doc.txt";
  for (int i = 0; i < 12; ++i) wanted.document += "Water boils at a hundred degrees. ";
  wanted.questions.resize(3);
  for (TaskQuestion& question : wanted.questions) question.text = "When does water boil?";
  wanted.max_new_tokens = 4;
  const Suite suite = ask_suite(engine_, wanted);
  ASSERT_EQ(suite.units.size(), 1u);
  check_run(suite, 0);
  EXPECT_EQ(suite.count(0, options_), 3u);
}

}  // namespace
}  // namespace precis::test
