#include "compress/budget.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"

namespace precis {
namespace {

std::string rejection(std::string_view text) {
  try {
    Budget::parse(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

TEST(Budget, ReadsRatios) {
  for (const char* text : {"25%", "0.25", " 25 % ", ".25", "25.0%"}) {
    const Budget budget = Budget::parse(text);
    EXPECT_EQ(budget.unit, Budget::Unit::kRatio) << text;
    EXPECT_EQ(budget.ratio, 0.25) << text;
  }
  EXPECT_EQ(Budget::parse("100%").ratio, 1.0);
  EXPECT_EQ(Budget::parse("1.0").ratio, 1.0);
  EXPECT_EQ(Budget::parse("0.001%").ratio, 0.00001);
}

TEST(Budget, ReadsTokensAndBytes) {
  EXPECT_EQ(Budget::parse("2048").unit, Budget::Unit::kTokens);
  EXPECT_EQ(Budget::parse("2048").amount, 2048u);
  EXPECT_EQ(Budget::parse("1").amount, 1u);
  EXPECT_EQ(Budget::parse("1").unit, Budget::Unit::kTokens);
  EXPECT_EQ(Budget::parse("512MiB").unit, Budget::Unit::kBytes);
  EXPECT_EQ(Budget::parse("512MiB").amount, 512u << 20);
  EXPECT_EQ(Budget::parse("300 mb").amount, 300'000'000u);
  EXPECT_EQ(Budget::parse("64KIB").amount, 65536u);
  EXPECT_EQ(Budget::parse("1.5GiB").amount, std::size_t{3} << 29);
  EXPECT_EQ(Budget::parse("7B").amount, 7u);
}

TEST(Budget, RejectsWithTheTextAndTheRange) {
  const std::string zero_byte("1\0", 2);
  for (const std::string& text : {std::string(""),           std::string(" "),
                                  std::string("%"),          std::string("0%"),
                                  std::string("101%"),       std::string("1.5"),
                                  std::string("0.0"),        std::string("0"),
                                  std::string("0B"),         std::string("0.5B"),
                                  std::string("-1"),         std::string("+1"),
                                  std::string("1e3"),        std::string("nan"),
                                  std::string("inf"),        std::string("0x10"),
                                  std::string("1.2.3"),      std::string("."),
                                  std::string("5x"),         std::string("99999999999999999999"),
                                  std::string("9999999TiB"), std::string("25%%"),
                                  std::string("1 2"),        zero_byte,
                                  std::string(100000, '9')}) {
    const std::string message = rejection(text);
    EXPECT_NE(message.find("accepted: a ratio"), std::string::npos) << text.substr(0, 50);
    EXPECT_NE(message.find(text.substr(0, std::min<std::size_t>(text.size(), 1))),
              std::string::npos);
    EXPECT_LT(message.size(), 400u);
    EXPECT_EQ(message.find('\0'), std::string::npos);
  }
}

TEST(Budget, PrintsWhatItReads) {
  for (const char* text : {"25%", "100%", "33.3%", "0.07", "0.3333333333333333", "1", "2048",
                           "512MiB", "300MB", "7B", "3KiB", "1TiB"})
    EXPECT_EQ(Budget::parse(text).print(), text);
  EXPECT_EQ(Budget::parse("0.5").print(), "50%");
  EXPECT_EQ(Budget::parse("1024KiB").print(), "1MiB");
  EXPECT_EQ(Budget::parse("1.0").print(), "100%");
}

TEST(Budget, RandomBudgetsSurviveTheRoundTrip) {
  std::mt19937_64 draw(3);
  for (int round = 0; round < 20000; ++round) {
    Budget budget;
    budget.unit = static_cast<Budget::Unit>(draw() % 3);
    // All magnitudes, down to the smallest ratio.
    budget.ratio = std::ldexp(std::generate_canonical<double, 53>(draw),
                              -static_cast<int>(draw() % (round % 10 == 0 ? 1000 : 8)));
    if (budget.ratio == 0) continue;
    budget.amount = 1 + (draw() >> (11 + draw() % 53));
    const Budget again = Budget::parse(budget.print());
    ASSERT_EQ(again.unit, budget.unit) << budget.print();
    if (budget.unit == Budget::Unit::kRatio)
      ASSERT_EQ(again.ratio, budget.ratio) << budget.print();
    else
      ASSERT_EQ(again.amount, budget.amount) << budget.print();
  }
}

TEST(Budget, AnyBytesAreReadOrRejected) {
  std::mt19937 draw(4);
  const std::string alphabet("0123456789.%KMGTiBb \0x-e", 24);
  std::size_t accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text(draw() % 8, ' ');
    for (char& c : text)
      c = round % 4 == 0 ? static_cast<char>(draw()) : alphabet[draw() % alphabet.size()];
    try {
      EXPECT_FALSE(Budget::parse(text).print().empty());
      ++accepted;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    }
  }
  EXPECT_GT(accepted, 100u);
  EXPECT_LT(accepted, 19000u);
}

TEST(Budget, AllowsTheBytesItMeans) {
  const std::size_t per_token = 1000;
  EXPECT_EQ(Budget::parse("25%").bytes(200 * per_token, 200), 50 * per_token);
  EXPECT_EQ(Budget::parse("29%").bytes(100 * per_token, 100), 29 * per_token);
  EXPECT_EQ(Budget::parse("100%").bytes(12345, 3), 12345u);
  EXPECT_EQ(Budget::parse("50").bytes(200 * per_token, 200), 50 * per_token);
  EXPECT_EQ(Budget::parse("200").bytes(200 * per_token, 200), 200 * per_token);
  EXPECT_EQ(Budget::parse("5000").bytes(200 * per_token, 200), 200 * per_token);
  EXPECT_EQ(Budget::parse("777B").bytes(200 * per_token, 200), 777u);
  EXPECT_EQ(Budget::parse("1GiB").bytes(200 * per_token, 200), 200 * per_token);
  EXPECT_EQ(Budget::parse("33%").bytes(10, 1), 3u);
}

TEST(Budget, EveryWholePercentIsWhole) {
  for (std::size_t percent = 1; percent <= 100; ++percent) {
    const Budget budget = Budget::parse(std::to_string(percent) + "%");
    for (const std::size_t scale : {1u, 7u, 4096u, 1000003u, 1u << 30})
      EXPECT_EQ(budget.bytes(100 * scale, 100), percent * scale) << percent << " " << scale;
  }
}

}  // namespace
}  // namespace precis
