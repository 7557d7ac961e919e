#include "report/result_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "report/output_file.h"
#include "report/rows.h"
#include "report/run_log.h"

namespace precis {
namespace {

class ResultFiles : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::path(testing::TempDir()) / (std::string("precis_") + info->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }
  std::string refusal(const std::string& file, bool strict = false) const {
    try {
      read_results(file, strict);
    } catch (const Error& e) {
      return e.what();
    }
    return "accepted";
  }

  std::filesystem::path folder_;
  const std::string run_ = print_row(test::some_run()) + "\n";
  const std::string score_ = print_row(test::some_score()) + "\n";
};

TEST_F(ResultFiles, WhatIsPrintedComesBack) {
  ResultFile file;
  file.run = test::some_run();
  file.rows = {test::some_score(), test::some_kept(), test::some_fidelity()};
  const std::string text = print_results(file);
  const ResultFile back = read_results(write("r.jsonl", text), true);
  EXPECT_EQ(back.rows.size(), 3u);
  EXPECT_EQ(back.path, path("r.jsonl"));
  EXPECT_EQ(print_results(back), text);
}

TEST_F(ResultFiles, MalformedLinesAreNamedByNumber) {
  std::string bad = score_;
  bad.replace(bad.find("\"score\":0"), 7, "\"scare\"");
  const std::string file =
      write("r.jsonl", run_ + "\n \r\n" + score_ + bad + "{\"kind\"\n" + score_);
  const ResultFile read = read_results(file);
  EXPECT_EQ(read.rows.size(), 2u);
  EXPECT_EQ(read.n_skipped, 2u);
  ASSERT_EQ(read.skipped.size(), 2u);
  EXPECT_EQ(read.skipped[0], file + ":5: field 'score' is missing");
  EXPECT_EQ(read.skipped[1], file + ":6: not JSON, at byte 8");
  EXPECT_EQ(refusal(file, true), file + ":5: field 'score' is missing");
}

TEST_F(ResultFiles, LineEndingsAndAMissingLastOne) {
  const std::string whole = run_ + score_;
  EXPECT_EQ(read_results(write("a", whole.substr(0, whole.size() - 1)), true).rows.size(), 1u);
  std::string windows;
  for (const char c : whole) windows += c == '\n' ? std::string("\r\n") : std::string(1, c);
  EXPECT_EQ(read_results(write("b", windows), true).rows.size(), 1u);
}

// A run that was killed: the last line may be cut at any byte.
TEST_F(ResultFiles, CutAnywhere) {
  const std::string whole = run_ + score_ + score_;
  for (std::size_t n = 0; n <= whole.size(); ++n) {
    const std::string file = write("cut.jsonl", whole.substr(0, n));
    if (n + 1 < run_.size()) {
      EXPECT_NE(refusal(file).find("has no 'run' row"), std::string::npos) << n;
      continue;
    }
    const ResultFile read = read_results(file);
    const std::size_t n_whole = n + 1 < run_.size() + score_.size() ? 0
                                : n + 1 < whole.size()              ? 1
                                                                    : 2;
    EXPECT_EQ(read.rows.size(), n_whole) << n;
    EXPECT_LE(read.n_skipped, 1u);
  }
}

TEST_F(ResultFiles, TheRunComesFirstAndOnce) {
  const std::string early = write("early", score_ + run_);
  EXPECT_NE(refusal(early).find(early + ":1: a row before the 'run' row"), std::string::npos);
  const std::string second = write("second", run_ + score_ + run_ + score_);
  EXPECT_NE(refusal(second).find(second + ":3: a second 'run' row"), std::string::npos);
  EXPECT_NE(refusal(write("empty", "")).find("has no 'run' row"), std::string::npos);
  EXPECT_NE(refusal(write("text", "hello\n")).find(":1: not JSON"), std::string::npos);
}

TEST_F(ResultFiles, WhatCannotBeRead) {
  EXPECT_NE(refusal(path("missing")).find("cannot open"), std::string::npos);
  EXPECT_NE(refusal(folder_.string()).find("is a directory"), std::string::npos);
}

TEST_F(ResultFiles, LongLinesAreSkippedAndEndlessOnesRefused) {
  const std::string file =
      write("long.jsonl", run_ + std::string(kMostLineBytes + 1, ' ') + "\n" + score_);
  const ResultFile read = read_results(file);
  EXPECT_EQ(read.rows.size(), 1u);
  ASSERT_EQ(read.n_skipped, 1u);
  EXPECT_NE(read.skipped[0].find(":2: the line has more than 67108864 bytes"), std::string::npos);
  EXPECT_NE(refusal("/dev/zero").find("more than 1073741824 bytes"), std::string::npos);
}

TEST_F(ResultFiles, TheListOfSkippedLinesIsBounded) {
  std::string text = run_;
  for (int i = 0; i < 5000; ++i) text += "x\n";
  const ResultFile read = read_results(write("noise", text));
  EXPECT_EQ(read.n_skipped, 5000u);
  EXPECT_EQ(read.skipped.size(), 1000u);
}

TEST_F(ResultFiles, OutputReplacesOnlyWhenItIsWhole) {
  write_file(path("out"), "first");
  write_file(path("out"), "second");
  EXPECT_EQ(std::filesystem::file_size(path("out")), 6u);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
  for (const std::string& bad :
       {folder_.string(), path("no/such/folder/out"), std::string("/dev/full")}) {
    try {
      write_file(bad, std::string(1 << 16, 'x'));
      ADD_FAILURE() << bad;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kIo);
      EXPECT_NE(std::string(e.what()).find(bad), std::string::npos) << e.what();
    }
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST(TimingPath, IsBesideTheResults) {
  EXPECT_EQ(timing_path("a/results.jsonl"), "a/results.timing.jsonl");
  EXPECT_EQ(timing_path("x.txt"), "x.txt.timing.jsonl");
}

}  // namespace
}  // namespace precis
