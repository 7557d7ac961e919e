#include "compress/layer_dump.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "compress/layer_case.h"

namespace precis {
namespace {

std::string temporary_file() { return ::testing::TempDir() + "layer_dump_test.layer"; }

TEST(LayerDump, ReadsBackWhatItWrote) {
  const test::LayerCase layer =
      test::make_layer({{3, 16}, 2, {0.1f, 30.0f}}, 41, test::Pattern::kRandom, 5);
  test::write_layer_dump(temporary_file(), layer.dense, layer.observed, layer.shape);
  const test::LayerDump dump = test::read_layer_dump(temporary_file());
  std::remove(temporary_file().c_str());
  EXPECT_EQ(dump.shape.kv, layer.shape.kv);
  EXPECT_EQ(dump.shape.group, 2u);
  EXPECT_EQ(dump.shape.rule.scale, 0.1f);
  EXPECT_EQ(dump.shape.rule.softcap, 30.0f);
  EXPECT_EQ(test::fingerprint(FrozenLayer::from_tail(dump.dense)),
            test::fingerprint(FrozenLayer::from_tail(layer.dense)));
  EXPECT_EQ(dump.observed.n_heads, 6u);
  EXPECT_EQ(dump.observed.n_tokens, 41u);
  EXPECT_EQ(dump.observed.queries, layer.observed.queries);
  EXPECT_EQ(dump.observed.log_sum_exp, layer.observed.log_sum_exp);
}

TEST(LayerDump, DamagedFilesAreRejected) {
  EXPECT_THROW(test::read_layer_dump(temporary_file() + ".absent"), Error);
  std::ofstream(temporary_file()) << "{\"n_heads\": 2}\n";
  EXPECT_THROW(test::read_layer_dump(temporary_file()), Error);
  std::ofstream(temporary_file())
      << "{\"n_kv_heads\": 1, \"n_heads\": 2, \"n_tokens\": 3, \"n_queries\": 3, \"head_dim\": 8, "
         "\"scale\": 1, \"softcap\": 0}\nshort";
  EXPECT_THROW(test::read_layer_dump(temporary_file()), Error);
  std::remove(temporary_file().c_str());
}

}  // namespace
}  // namespace precis
