// The choice between two products, with a clock that follows a formula.
#include "model/matmul_choice.h"

#include <gtest/gtest.h>

#include <map>

#include "base/error.h"

namespace precis::test {
namespace {

// ggml takes 10 a token; the f32 product 40 for expanding and `per_token` a token.
MatmulTimer linear_timer(double per_token) {
  return [per_token](MatmulWay way, std::size_t n) {
    const auto tokens = static_cast<double>(n);
    return way == MatmulWay::kGgml ? 10.0 * tokens : 40.0 + per_token * tokens;
  };
}

TEST(MatmulChoice, SmallestMeasuredBatchThatWins) {
  EXPECT_EQ(choose_min_tokens(linear_timer(5)), 8u);  // equal at 8
  EXPECT_EQ(choose_min_tokens(linear_timer(4.9)), 8u);
  EXPECT_EQ(choose_min_tokens(linear_timer(6)), 12u);  // equal at 10
  EXPECT_EQ(choose_min_tokens(linear_timer(9)), 48u);  // equal at 40, 32 loses by 3 %
  EXPECT_EQ(choose_min_tokens(linear_timer(0)), 4u);   // equal at 4, the smallest tried
}

TEST(MatmulChoice, TiesGoToTheExactProductAndLossesDoNot) {
  const auto ratio_timer = [](double ratio) {
    return [ratio](MatmulWay way, std::size_t) { return way == MatmulWay::kGgml ? 1.0 : ratio; };
  };
  EXPECT_EQ(choose_min_tokens(ratio_timer(1.0)), 4u);
  EXPECT_EQ(choose_min_tokens(ratio_timer(1.019)), 4u);
  EXPECT_EQ(choose_min_tokens(ratio_timer(1.021)), kNeverTokens);
  EXPECT_EQ(choose_min_tokens(ratio_timer(3.0)), kNeverTokens);
}

TEST(MatmulChoice, NeverUsesABatchBelowOneThatLost) {
  // Wins everywhere but at 64.
  const std::size_t least = choose_min_tokens([](MatmulWay way, std::size_t n) {
    return way == MatmulWay::kSgemm && n == 64 ? 2.0 : way == MatmulWay::kSgemm ? 0.5 : 1.0;
  });
  EXPECT_EQ(least, 96u);
}

TEST(MatmulChoice, OneDisturbedRunDoesNotTurnIt) {
  // Each way's first run at a size is a fifth slower than its others: the true ratio is 0.95.
  for (const MatmulWay disturbed : {MatmulWay::kGgml, MatmulWay::kSgemm}) {
    std::map<std::pair<MatmulWay, std::size_t>, int> runs;
    EXPECT_EQ(choose_min_tokens([&](MatmulWay way, std::size_t n) {
                const bool first = runs[{way, n}]++ == 0;
                const double time = way == MatmulWay::kGgml ? 1.0 : 0.95;
                return first && way == disturbed ? 1.2 * time : time;
              }),
              4u);
  }
}

TEST(MatmulChoice, ClearCasesAreMeasuredOnce) {
  std::size_t n_runs = 0;
  choose_min_tokens([&](MatmulWay way, std::size_t) {
    ++n_runs;
    return way == MatmulWay::kGgml ? 1.0 : 2.0;
  });
  EXPECT_EQ(n_runs, 2u);
}

TEST(MatmulChoice, NamesGoBothWays) {
  for (const MatmulMode mode : {MatmulMode::kAuto, MatmulMode::kGgml, MatmulMode::kSgemm})
    EXPECT_EQ(parse_matmul_mode(matmul_mode_name(mode)), mode);
  EXPECT_THROW(parse_matmul_mode("blas"), Error);
}

}  // namespace
}  // namespace precis::test
