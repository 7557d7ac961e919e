// Files of layer budgets: they read back as they were, and anything else is refused with its place.
#include "report/budget_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"

namespace precis {
namespace {

BudgetFile sample() {
  BudgetFile file;
  file.model = "a \"model\".gguf";
  file.model_sha256 = std::string(64, 'a');
  file.shares = {1.25, 0, 0.001, 2.7490000000000001, 1e6};
  file.search.settings = {{"keep", "10%"}, {"seed", "1"}};
  file.search.values = {0.1, 1.0 / 3, 5e-324, 1e300};
  file.search.finished = true;
  return file;
}

std::string error_of(const std::string& text) {
  try {
    parse_budget_file(text, "b.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kFormat) << text;
    EXPECT_NE(std::string(error.what()).find("'b.json'"), std::string::npos) << error.what();
    return error.what();
  }
  ADD_FAILURE() << text << " was accepted";
  return "";
}

TEST(BudgetFile, ReadsBackBitForBit) {
  const BudgetFile file = sample();
  const std::string text = print_budget_file(file);
  const BudgetFile again = parse_budget_file(text, "x");
  EXPECT_EQ(again.model, file.model);
  EXPECT_EQ(again.model_sha256, file.model_sha256);
  EXPECT_EQ(again.shares, file.shares);
  EXPECT_EQ(again.search.settings, file.search.settings);
  EXPECT_EQ(again.search.values, file.search.values);
  EXPECT_TRUE(again.search.finished);
  EXPECT_EQ(print_budget_file(again), text);
}

TEST(BudgetFile, IsWrittenByHand) {
  const BudgetFile file = parse_budget_file(
      R"({"shares": [3, 1], "n_layers": 2, "note": "mine", "model": "", "model_sha256": "",
          "version": 1, "format": "precis layer budgets"})",
      "x");
  EXPECT_EQ(file.shares, (std::vector<double>{3, 1}));
  EXPECT_TRUE(file.search.empty());
}

std::string many_members(std::size_t n) {
  std::string out;
  for (std::size_t i = 0; i < n; ++i) out += concat("\"", i, "\":0,");
  return out;
}

// Names of files can be anything; what is printed is read.
TEST(BudgetFile, NamesNeedNotBeUtf8) {
  BudgetFile file = sample();
  file.model = "mod\xe8le.gguf";
  EXPECT_EQ(parse_budget_file(print_budget_file(file), "x").model, "mod\xef\xbf\xbdle.gguf");
}

// One member of a sound file is replaced.
TEST(BudgetFile, RefusesWhatIsNotOneAndSaysWhere) {
  const std::string good =
      R"({"format":"precis layer budgets","version":1,"model":"m","model_sha256":"","n_layers":2,"shares":[1,2]})";
  parse_budget_file(good, "x");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  const std::pair<std::string, std::string> cases[] = {
      {"", "line 1, column 1"},
      {"{\n\"format\": oops}", "line 2, column 11"},
      {"[1, 2]", "not a JSON object"},
      {"1.25\n0.75\n", "not JSON"},
      {std::string(100000, '['), "nested more than 8 deep"},
      {"{\"format\":" + std::string(100000, '[') + std::string(100000, ']') + "}",
       "nested more than 8 deep"},
      {with("\"m\"", std::string(100, '[') + std::string(100, ']')), "nested more than 8 deep"},
      {"{" + many_members(100000) + "\"version\":1}", "more than 1000 members"},
      {with("precis layer budgets", "something"), "'format'"},
      {with("\"version\":1", "\"version\":2"), "'version' is 2, this program reads 1"},
      {with("\"version\":1,", ""), "'version' is missing"},
      {with("\"n_layers\":2", "\"n_layers\":3"), "'n_layers' is 3 but 'shares' has 2"},
      {with("\"n_layers\":2", "\"n_layers\":-2"), "'n_layers' is not a whole number: -2"},
      {with("[1,2]", "[]"), "'shares' is empty"},
      {with("[1,2]", "[1,-2]"), "'shares'[1] is -2"},
      {with("[1,2]", "[0.0001,2]"), "'shares'[0] is 0.0001"},
      {with("[1,2]", "[1,2e6]"), "'shares'[1] is 2e+06"},
      {with("[1,2]", "[1,NaN]"), "not JSON"},
      {with("[1,2]", "[1,1e999]"), "not JSON"},
      {with("[1,2]", "[1,null]"), "'shares'[1] is not a finite number: null"},
      {with("[1,2]", "[1,\"2\"]"), "'shares'[1] is not a finite number: \"2\""},
      {with("[1,2]", "[0,0]"), "all 'shares' are 0"},
      {with("[1,2]", "{}"), "'shares' is not a list"},
      {with("\"m\"", "7"), "'model' is not a text: 7"},
      {with("[1,2]", "[1,2],\"search\":1"), "'search' is not an object"},
      {with("[1,2]", "[1,2],\"search\":{}"), "'settings' is missing"},
  };
  for (const auto& [text, part] : cases) {
    const std::string error = error_of(text);
    EXPECT_NE(error.find(part), std::string::npos) << text.substr(0, 200) << "\n" << error;
  }
  std::string many = "[1";
  for (std::size_t i = 0; i < kMostBudgetLayers; ++i) many += ",1";
  EXPECT_NE(error_of(with("[1,2]", many + "]")).find("has 257 numbers, at most 256"),
            std::string::npos);
  // Cut off anywhere.
  const std::string whole = print_budget_file(sample());
  for (std::size_t n = 0; n + 2 < whole.size(); n += 7) error_of(whole.substr(0, n));
}

TEST(BudgetFile, ReadsRegularFilesOfASoundSize) {
  const std::string path = testing::TempDir() + "budgets-" + std::to_string(::getpid()) + ".json";
  const auto error = [&](const std::string& name) -> std::string {
    try {
      read_budget_file(name);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kIo);
      return e.what();
    }
    ADD_FAILURE() << name;
    return "";
  };
  std::ofstream(path) << print_budget_file(sample());
  EXPECT_EQ(read_budget_file(path).shares, sample().shares);
  std::ofstream(path) << std::string(5 << 20, ' ');
  EXPECT_NE(error(path).find("more than 4194304 bytes"), std::string::npos);
  std::filesystem::remove(path);
  EXPECT_NE(error(path).find("no such file"), std::string::npos);
  EXPECT_NE(error(testing::TempDir()).find("not a regular file"), std::string::npos);
  EXPECT_NE(error("/dev/zero").find("not a regular file"), std::string::npos);
}

}  // namespace
}  // namespace precis
