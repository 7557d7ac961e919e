// A run that is stopped anywhere and resumed leaves the same bytes; what is not its own is refused.
#include "report/run_log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/error.h"

namespace precis {
namespace {

class RunLogTest : public testing::Test {
 protected:
  RunLogTest() {
    for (std::size_t i = 0; i < 4; ++i)
      plan_.push_back({"ruler", i % 2 == 0 ? "vt" : "cwe", 512, i / 2});
    run_.suite = "ruler";
    run_.model = "tiny.gguf";
  }
  void SetUp() override {
    path_ = testing::TempDir() + "run_log_" + std::to_string(getpid()) + ".jsonl";
    remove();
  }
  void TearDown() override { remove(); }
  void remove() const {
    std::filesystem::remove(path_);
    std::filesystem::remove(timing_path(path_));
  }

  // Unit i has i + 1 rows.
  static std::size_t rows_of(std::size_t unit) { return unit + 1; }
  void append(RunLog& log) const {
    const std::size_t unit = log.n_done();
    std::vector<ResultRow> rows;
    std::vector<TimingRow> times;
    for (std::size_t i = 0; i < rows_of(unit); ++i) {
      ScoreRow row;
      row.key = {plan_[unit].suite,
                 plan_[unit].task,
                 plan_[unit].length,
                 plan_[unit].index,
                 i,
                 "aware",
                 "full",
                 "full",
                 "100%",
                 "f16",
                 "f16"};
      row.answer = "answer\n" + std::to_string(unit);
      TimingRow time;
      time.key = row.key;
      times.push_back(time);
      rows.emplace_back(row);
    }
    log.append(rows, times);
  }
  void finish() const {
    RunLog log(path_, run_, plan_, rows_of);
    while (log.n_done() < plan_.size()) append(log);
  }

  static std::string read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void write(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
  }
  // What opening is refused with.
  std::string refused() const {
    try {
      const RunLog log(path_, run_, plan_, rows_of);
    } catch (const Error& e) {
      return e.what();
    }
    return {};
  }

  std::vector<UnitKey> plan_;
  RunRow run_;
  std::string path_;
};

// Not at every byte, which took two minutes of waiting for a disk: at those around the ends of
// lines, where the cases change, and at every 13th.
TEST_F(RunLogTest, AFileCutAnywhereEndsUpTheSame) {
  finish();
  const std::string whole = read(path_);
  const std::string times = read(timing_path(path_));
  ASSERT_EQ(std::count(whole.begin(), whole.end(), '\n'), 1 + 1 + 2 + 3 + 4);
  for (std::size_t n = 0; n <= whole.size(); ++n) {
    const std::size_t from = n < 3 ? 0 : n - 3;
    if (n % 13 != 0 && whole.substr(from, 5).find('\n') == std::string::npos) continue;
    write(path_, whole.substr(0, n));
    // The times are ahead, at the same place, or lost.
    write(timing_path(path_), n % 3 == 0 ? times : n % 3 == 1 ? times.substr(0, n / 2) : "");
    finish();
    ASSERT_EQ(read(path_), whole) << "cut at byte " << n;
    if (n % 3 == 0) {
      ASSERT_EQ(read(timing_path(path_)), times) << n;
    }
  }
}

TEST_F(RunLogTest, LosesAtMostOneUnit) {
  finish();
  const std::string whole = read(path_);
  std::size_t line = 0;
  const std::size_t first_line_of[] = {1, 2, 4, 7, 11};
  for (std::size_t n = 0; n < whole.size(); ++n) {
    if (whole[n] == '\n') ++line;
    write(path_, whole.substr(0, n + 1));
    const RunLog log(path_, run_, plan_, rows_of);
    std::size_t done = 0;
    while (done < 4 && first_line_of[done + 1] <= line) ++done;
    ASSERT_EQ(log.n_done(), done) << "byte " << n;
  }
}

TEST_F(RunLogTest, AFinishedRunIsLeftAsItIs) {
  finish();
  const std::string whole = read(path_);
  EXPECT_EQ(RunLog(path_, run_, plan_, rows_of).n_done(), plan_.size());
  EXPECT_EQ(read(path_), whole);
}

TEST_F(RunLogTest, AnotherRunsFileIsRefusedAndKept) {
  finish();
  const std::string whole = read(path_);
  run_.seed = 7;
  EXPECT_NE(refused().find("field 'seed' is 0 and 7"), std::string::npos) << refused();
  run_.seed = 0;
  plan_[1].index = 5;
  EXPECT_NE(refused().find(":3: sample 0 of task 'cwe'"), std::string::npos) << refused();
  plan_.resize(1);
  EXPECT_FALSE(refused().empty());
  EXPECT_EQ(read(path_), whole);
  write(path_, "a letter\nto nobody\n");
  EXPECT_NE(refused().find("is not a result file"), std::string::npos) << refused();
  EXPECT_EQ(read(path_), "a letter\nto nobody\n");
  write(path_, "a letter without end");
  EXPECT_NE(refused().find("is not a result file"), std::string::npos) << refused();
}

TEST_F(RunLogTest, AnotherFileInTheTimesPlaceIsRefusedAndKept) {
  finish();
  const std::string times = timing_path(path_);
  const std::string whole = read(path_);
  write(times, "years of notes\n");
  EXPECT_NE(refused().find(".timing.jsonl' is not a result file"), std::string::npos) << refused();
  EXPECT_EQ(read(times), "years of notes\n");
  RunRow other = run_;
  other.seed = 9;
  const std::string line = print_row(other) + "\n";
  write(times, line);
  EXPECT_NE(refused().find("field 'seed' is 9 and 0"), std::string::npos) << refused();
  EXPECT_EQ(read(times), line);
  EXPECT_EQ(read(path_), whole);
}

TEST_F(RunLogTest, ALineThatIsBrokenInTheMiddleIsNamed) {
  finish();
  std::string text = read(path_);
  text.insert(text.find('\n', text.find("\"cwe\"")) + 1, "{\"kind\":\"score\"}\n");
  write(path_, text);
  EXPECT_NE(refused().find(":4: field 'suite' is missing"), std::string::npos) << refused();
}

TEST_F(RunLogTest, TwoProcessesDoNotShareAFile) {
  const RunLog first(path_, run_, plan_, rows_of);
  EXPECT_NE(refused().find("another process writes to"), std::string::npos) << refused();
}

TEST_F(RunLogTest, FilesThatCannotBeWrittenAreNamed) {
  path_ = testing::TempDir() + "no_such_folder/results.jsonl";
  EXPECT_NE(refused().find("no_such_folder/results.jsonl"), std::string::npos) << refused();
}

TEST(TimingPath, LiesBesideTheResults) {
  EXPECT_EQ(timing_path("a/results.jsonl"), "a/results.timing.jsonl");
  EXPECT_EQ(timing_path("results"), "results.timing.jsonl");
}

}  // namespace
}  // namespace precis
