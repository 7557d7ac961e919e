// ||W_O v||_1 with the quantised weights of real models, against kvpress' numbers for the same
// values (tests/data/kvpress, see tests/methods/make_kvpress_fixtures.py): it had the weights from
// the gguf package's dequantize() and computed in float64.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "compress/output_projection.h"
#include "engine/session_checks.h"
#include "test_paths.h"

namespace precis::test {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

struct NormCase {
  const char* fixture;
  const char* model;
};

class OutputNorms : public testing::TestWithParam<NormCase> {};
INSTANTIATE_TEST_SUITE_P(Layers, OutputNorms,
                         testing::Values(NormCase{"smollm2_early", kSmolLm2},
                                         NormCase{"smollm2_late", kSmolLm2},
                                         NormCase{"qwen2_early", kQwen2},
                                         NormCase{"qwen2_late", kQwen2}),
                         [](const auto& info) { return info.param.fixture; });

TEST_P(OutputNorms, AreKvpress) {
  const std::string model = real_model(GetParam().model);
  PRECIS_SKIP_IF_ABSENT(model);
  const std::string path = std::string(PRECIS_TEST_DATA) + "/kvpress/" + GetParam().fixture;
  const auto json = nlohmann::json::parse(read_file(path + ".json"));
  const std::string bytes = read_file(path + ".bin");
  const auto& arrays = json.at("arrays");
  const auto shape = arrays.at("values").at("shape").get<std::vector<std::size_t>>();
  const std::size_t n = shape[1];
  std::vector<Half> values(shape[0] * n * shape[2]);
  std::memcpy(values.data(), bytes.data() + arrays.at("values").at("at").get<std::size_t>(),
              values.size() * sizeof(Half));
  std::vector<float> wanted(shape[0] * n);
  std::memcpy(wanted.data(), bytes.data() + arrays.at("output_norms").at("at").get<std::size_t>(),
              wanted.size() * sizeof(float));

  // However weights are placed, they are the same numbers.
  for (const WeightsMode mode : {WeightsMode::kFile, WeightsMode::kQ8_0}) {
    const auto engine =
        Engine::load(model, {.n_threads = 2, .matmul = MatmulMode::kGgml, .weights = mode});
    const LayerShape& layer = engine->compressible_layers()[json.at("layer").get<std::size_t>()];
    ASSERT_EQ(layer.kv.n_kv_heads, shape[0]);
    ASSERT_EQ(layer.kv.head_dim, shape[2]);
    for (std::size_t h = 0; h < shape[0]; ++h) {
      HeadView head;
      head.head = h;
      head.n_tokens = n;
      head.head_dim = shape[2];
      head.group = layer.group;
      head.entries.values = values.data() + h * n * shape[2];
      head.output = layer.output;
      const std::span<const float> norms = head.output_norms();
      for (std::size_t t = 0; t < n; ++t) {
        double mean = 0;
        for (std::size_t g = 0; g < layer.group; ++g)
          mean += static_cast<double>(norms[g * n + t]) / static_cast<double>(layer.group);
        const auto theirs = static_cast<double>(wanted[h * n + t]);
        EXPECT_NEAR(mean, theirs, 1e-5 * theirs) << "KV head " << h << ", token " << t;
      }
    }
  }
}

}  // namespace
}  // namespace precis::test
