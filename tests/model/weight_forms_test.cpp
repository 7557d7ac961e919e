// Conversions that lose nothing, and the choice of the form with a clock that follows a formula.
#include "model/weight_forms.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <set>

#include "base/error.h"
#include "model/exact_forms.h"

namespace precis::test {
namespace {

// Blocks of random bits. Scales are any f16, infinities and NaN among them, unless `finite`.
std::vector<std::uint8_t> random_blocks(ggml_type type, std::size_t n, bool finite) {
  std::mt19937 draw(5);
  const std::size_t bytes = ggml_type_size(type);
  std::vector<std::uint8_t> blocks(n * bytes);
  for (std::uint8_t& byte : blocks) byte = static_cast<std::uint8_t>(draw());
  for (std::size_t b = 0; b < n; ++b) {
    if (finite) blocks[b * bytes + 1] &= 0xbb;
    if (!finite && b % 5 == 0) {  // exponent of all ones
      blocks[b * bytes + 1] |= 0x7c;
      if (b % 10 == 0) blocks[b * bytes] = 0, blocks[b * bytes + 1] &= 0xfc;
    }
  }
  return blocks;
}

std::vector<float> expand(ggml_type type, const std::vector<std::uint8_t>& blocks, std::size_t n) {
  std::vector<float> out(n);
  ggml_get_type_traits(type)->to_float(blocks.data(), out.data(), static_cast<std::int64_t>(n));
  return out;
}

class ExactForms : public testing::TestWithParam<ggml_type> {};
INSTANTIATE_TEST_SUITE_P(Types, ExactForms,
                         testing::Values(GGML_TYPE_Q5_0, GGML_TYPE_Q4_0, GGML_TYPE_IQ4_NL),
                         [](const auto& info) { return std::string(ggml_type_name(info.param)); });

TEST_P(ExactForms, ExpandToTheSameBits) {
  const auto to = exact_form(GetParam());
  ASSERT_TRUE(to.has_value());
  Backend backend(2);
  // One block, less than one step, and several tasks that do not divide.
  for (const std::size_t n_blocks : {1, 50, 9001}) {
    for (const bool finite : {true, false}) {
      const auto blocks = random_blocks(GetParam(), n_blocks, finite);
      const std::size_t n = 32 * n_blocks;
      std::vector<std::uint8_t> converted(n_blocks * ggml_type_size(*to) + 1, 0xaa);
      convert_exactly(GetParam(), blocks.data(), converted.data(), n, backend);
      EXPECT_EQ(converted.back(), 0xaa);
      const auto before = expand(GetParam(), blocks, n);
      const auto after = expand(*to, converted, n);
      EXPECT_EQ(std::memcmp(before.data(), after.data(), n * sizeof(float)), 0)
          << n_blocks << " blocks, finite: " << finite;
      if (finite) {
        EXPECT_GT(std::set<float>(before.begin(), before.end()).size(), 8u);
      }
    }
  }
}

TEST(ExactForm, TypesWithoutOne) {
  for (const ggml_type type :
       {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q4_1, GGML_TYPE_Q5_1,
        GGML_TYPE_Q8_0, GGML_TYPE_Q4_K, GGML_TYPE_Q6_K, GGML_TYPE_IQ4_XS})
    EXPECT_FALSE(exact_form(type).has_value()) << ggml_type_name(type);
}

TEST(WeightForms, SpeedupOfTheBestRuns) {
  const auto timer = [](double file, double converted) {
    return [=](FormWay way) { return way == FormWay::kFile ? file : converted; };
  };
  EXPECT_DOUBLE_EQ(measure_speedup(timer(3, 2)), 1.5);
  EXPECT_DOUBLE_EQ(measure_speedup(timer(2, 3)), 2.0 / 3);
  // Single disturbed runs of one way, in a case near the limit.
  for (const FormWay disturbed : {FormWay::kFile, FormWay::kConverted}) {
    int n_runs = 0;
    EXPECT_DOUBLE_EQ(measure_speedup([&](FormWay way) {
                       const double time = way == FormWay::kFile ? 1.12 : 1.0;
                       return way == disturbed && ++n_runs <= 2 ? 1.05 * time : time;
                     }),
                     1.12);
  }
}

TEST(WeightForms, ClearCasesAreMeasuredTwice) {
  for (const double converted : {0.5, 1.5}) {
    int n_runs = 0;
    measure_speedup([&](FormWay way) {
      ++n_runs;
      return way == FormWay::kFile ? 1.0 : converted;
    });
    EXPECT_EQ(n_runs, 6);  // the first pair is for the caches
  }
}

TEST(WeightForms, NamesGoBothWays) {
  for (const WeightsMode mode : {WeightsMode::kAuto, WeightsMode::kFile, WeightsMode::kQ8_0})
    EXPECT_EQ(parse_weights_mode(weights_mode_name(mode)), mode);
  EXPECT_THROW(parse_weights_mode("q4_0"), Error);
}

TEST(WeightForms, AddedBytesAreOfConvertedFormsOnly) {
  WeightsReport report;
  EXPECT_EQ(report.added_bytes(), 0u);
  report.forms.resize(2);
  report.forms[0].file_bytes = 22;
  report.forms[0].converted_bytes = 34;
  report.forms[1] = report.forms[0];
  report.forms[1].is_converted = true;
  EXPECT_EQ(report.added_bytes(), 12u);
}

}  // namespace
}  // namespace precis::test
