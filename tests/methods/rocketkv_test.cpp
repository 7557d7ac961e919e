// RocketKV's first stage: one token that the window attends to keeps 31 neighbours on either side.
#include <gtest/gtest.h>

#include "methods/plain_layer.h"

namespace precis {
namespace {

using namespace test;

TEST(Rocketkv, KeepsTheNeighbourhood) {
  const std::size_t n = 200;
  std::vector<Row> keys(n, Row{0}), queries(n, Row{3});
  keys[80] = {2};
  const LayerCase layer = hand_layer(keys, {}, queries);
  const Method method = builtin_methods().parse("rocketkv");
  EXPECT_EQ(method.spec, builtin_methods().parse("snapkv(pool=63)").spec);
  HeadView head = view_head(layer, 0);
  std::vector<float> scores(n);
  method.scorer->score(head, scores);
  for (std::size_t t = 0; t < n - 32; ++t)
    EXPECT_EQ(scores[t] > 0.5f, t >= 80 - 31 && t <= 80 + 31) << t;
}

}  // namespace
}  // namespace precis
