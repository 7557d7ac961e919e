#include "tasks/sample.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace precis {
namespace {

TEST(Metric, NamesAreDistinctAndReadBack) {
  std::set<std::string> names;
  for (int i = 0; i <= static_cast<int>(Metric::kEditSimilarity); ++i) {
    const auto metric = static_cast<Metric>(i);
    const std::string name = metric_name(metric);
    EXPECT_FALSE(name.empty()) << i;
    EXPECT_TRUE(names.insert(name).second) << name;
    EXPECT_EQ(find_metric(name), metric) << name;
  }
  EXPECT_FALSE(find_metric("").has_value());
  EXPECT_FALSE(find_metric("F1").has_value());
}

TEST(TokenCodec, CountsWhatItEncodes) {
  const TokenCodec bytes{
      [](std::string_view text) { return std::vector<std::int32_t>(text.begin(), text.end()); },
      [](std::span<const std::int32_t> tokens) {
        return std::string(tokens.begin(), tokens.end());
      }};
  EXPECT_EQ(bytes.count(""), 0u);
  EXPECT_EQ(bytes.count("seven b"), 7u);
}

}  // namespace
}  // namespace precis
