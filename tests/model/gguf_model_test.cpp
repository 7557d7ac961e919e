// A real model's file cut short, as interrupted downloads are.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "support/loading.h"
#include "support/test_models.h"

namespace precis::test {
namespace {

TEST(RealModelFile, CutAnywhere) {
  const std::string path = real_model(kSmolLm2);
  PRECIS_SKIP_IF_ABSENT(path);
  const std::string copy = testing::TempDir() + "precis_cut_" + std::to_string(getpid()) + ".gguf";
  std::filesystem::copy_file(path, copy, std::filesystem::copy_options::overwrite_existing);
  const std::uintmax_t size = std::filesystem::file_size(path);
  for (std::uintmax_t i = 50; i-- > 0;) {  // from the longest on, so that one copy is enough
    std::filesystem::resize_file(copy, size * i / 50);
    const LoadResult result = load_in_child(copy);
    EXPECT_EQ(result.code, "format") << size * i / 50 << " bytes: " << result.message;
  }
  std::filesystem::remove(copy);
}

TEST(RealModelFile, LoadsAndKnowsItself) {
  const std::string path = real_model(kSmolLm2);
  PRECIS_SKIP_IF_ABSENT(path);
  Backend backend(1);
  const auto model = Model::load(path, backend);
  EXPECT_EQ(model->config().arch, "llama");
  EXPECT_EQ(model->config().file_type, "q4_1");
  EXPECT_EQ(model->config().n_layers, 30u);
  EXPECT_EQ(model->config().n_kv_heads, 3u);
  EXPECT_EQ(model->config().group(), 3u);
  EXPECT_EQ(model->config().kv_bytes_per_token(), 30u * 3 * 64 * 2 * 2);
  EXPECT_EQ(model->config().n_ctx_train, 8192u);
  EXPECT_EQ(model->file_bytes(), std::filesystem::file_size(path));
}

}  // namespace
}  // namespace precis::test
