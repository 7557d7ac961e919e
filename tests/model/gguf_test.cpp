// Files that are not sound models: each must give one Error that names what is wrong, and never a
// crash.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "model/gguf_file.h"
#include "model/tokenizer.h"
#include "support/loading.h"
#include "support/test_models.h"
#include "test_paths.h"

namespace precis::test {
namespace {

struct Expectation {
  std::string file, code, text;
};

// What make_bad_models.py wrote.
std::vector<Expectation> read_list() {
  std::ifstream list(std::string(PRECIS_TINY_DIR) + "/bad/list.tsv");
  std::vector<Expectation> all;
  for (std::string line; std::getline(list, line);) {
    const std::size_t one = line.find('\t'), two = line.find('\t', one + 1);
    all.push_back({line.substr(0, one), line.substr(one + 1, two - one - 1), line.substr(two + 1)});
  }
  return all;
}

bool code_fits(const std::string& expected, const std::string& found) {
  const bool refused = found == "format" || found == "unsupported";
  if (expected == "any") return refused;
  if (expected == "any-or-ok") return refused || found == "ok";
  return expected == found;
}

std::string read_bytes(const std::string& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return bytes.str();
}

class TemporaryFile {
 public:
  TemporaryFile()
      : path_(testing::TempDir() + "precis_gguf_" + std::to_string(getpid()) + ".gguf") {}
  ~TemporaryFile() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }
  void write(std::string_view bytes) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }

 private:
  std::string path_;
};

TEST(BadModels, EachIsRefusedAndNamesWhatIsWrong) {
  const auto all = read_list();
  ASSERT_GE(all.size(), 300u);
  for (const Expectation& e : all) {
    const std::string path = std::string(PRECIS_TINY_DIR) + "/bad/" + e.file;
    const LoadResult result = load_in_child(path);
    EXPECT_TRUE(code_fits(e.code, result.code))
        << e.file << ": expected " << e.code << ", found " << result.code << ": " << result.message;
    EXPECT_NE(result.message.find(e.text), std::string::npos)
        << e.file << " should mention '" << e.text << "': " << result.message;
    EXPECT_EQ(result.message.find('\n'), std::string::npos) << "one line: " << result.message;
    if (result.code == "crash") continue;
    EXPECT_EQ(load_here(path).code, result.code)
        << "in this process, where leaks are seen: " << e.file;
  }
}

TEST(BadModels, CutAnywhere) {
  const std::string whole = read_bytes(tiny_model("llama"));
  ASSERT_GT(whole.size(), 100000u);
  TemporaryFile file;
  for (std::size_t i = 0; i < 50; ++i) {
    const std::size_t size = whole.size() * i / 50;
    file.write(std::string_view(whole).substr(0, size));
    const LoadResult result = load_in_child(file.path());
    EXPECT_EQ(result.code, "format") << size << " bytes: " << result.message;
    EXPECT_NE(result.message.find(file.path()), std::string::npos) << result.message;
  }
  // Around the borders of the header, too, one byte missing at the end included.
  for (const std::size_t size : {1ul, 3ul, 4ul, 8ul, 23ul, 24ul, 25ul, whole.size() - 1}) {
    file.write(std::string_view(whole).substr(0, size));
    EXPECT_EQ(load_in_child(file.path()).code, "format") << size << " bytes";
  }
  file.write(whole);
  EXPECT_EQ(load_in_child(file.path()).code, "ok");
}

// One damaged byte anywhere in the metadata: an Error or a sound model, never a crash.
TEST(BadModels, DamagedBytesNeverCrash) {
  const std::string whole = read_bytes(std::string(PRECIS_TINY_DIR) + "/bad/ok-base.gguf");
  TemporaryFile file;
  std::mt19937 draw(4);
  for (int i = 0; i < 150; ++i) {
    std::string damaged = whole;
    // The first half kilobyte holds the counts, types and sizes; the tensor table lies about 12 kB
    // in.
    const std::size_t at =
        i < 75 ? draw() % 700 : draw() % std::min<std::size_t>(whole.size(), 14000);
    damaged[at] = static_cast<char>(damaged[at] ^ static_cast<char>(1u << (draw() % 8)));
    file.write(damaged);
    const LoadResult result = load_in_child(file.path());
    EXPECT_NE(result.code, "crash") << "byte " << at << ": " << result.message;
    EXPECT_NE(result.code, "exception") << "byte " << at << ": " << result.message;
  }
}

TEST(BadModels, MissingFileAndDirectory) {
  const LoadResult missing = load_here("/no/such/folder/model.gguf");
  EXPECT_EQ(missing.code, "io");
  EXPECT_NE(missing.message.find("/no/such/folder/model.gguf"), std::string::npos);
  const LoadResult folder = load_here(PRECIS_TINY_DIR);
  EXPECT_EQ(folder.code, "io");
  EXPECT_NE(folder.message.find("directory"), std::string::npos) << folder.message;
  EXPECT_EQ(load_here("").code, "io");
  EXPECT_EQ(load_here("/dev/null").code, "io");
}

TEST(Models, ConfigsAreReadFromTheFile) {
  Backend backend(1);
  const ModelConfig gemma = Model::load(tiny_model("gemma3"), backend)->config();
  EXPECT_EQ(gemma.arch, "gemma3");
  EXPECT_EQ(gemma.n_layers, 7u);
  EXPECT_EQ(gemma.head_dim, 32u);
  EXPECT_EQ(gemma.group(), 4u);
  EXPECT_EQ(gemma.window, 16u);
  EXPECT_EQ(gemma.is_sliding, (std::vector<bool>{true, true, true, true, true, false, true}));
  EXPECT_EQ(gemma.rope(5).base, 1e6f);
  EXPECT_EQ(gemma.rope(6).base, 1e4f);
  EXPECT_EQ(gemma.file_type, "f32");
  const ModelConfig scaled = Model::load(tiny_model("gemma3-scaled"), backend)->config();
  EXPECT_EQ(scaled.is_sliding, (std::vector<bool>{true, true, false, true, true, false}));
  EXPECT_EQ(scaled.rope(2).freq_scale, 0.125f);
  EXPECT_EQ(scaled.rope(1).freq_scale, 1.0f);
  EXPECT_EQ(scaled.rope(1).base, 5000.0f);
  EXPECT_EQ(scaled.logit_softcap, 3.0f);
  const ModelConfig mha = Model::load(tiny_model("llama-mha"), backend)->config();
  EXPECT_EQ(mha.n_kv_heads, 4u) << "the number of KV heads defaults to that of heads";
  const ModelConfig hd80 = Model::load(tiny_model("llama-hd80"), backend)->config();
  EXPECT_EQ(hd80.head_dim, 80u);
  EXPECT_EQ(hd80.window, 0u) << "llama.cpp ignores Mistral's window, and so do we";
  EXPECT_EQ(hd80.kv_bytes_per_token(), 3u * 1 * 80 * 2 * 2);
  EXPECT_EQ(hd80.n_ctx_train, 1024u);
}

TEST(Models, OnlyATemplateInTheFileGivesAChatTemplate) {
  Backend backend(1);
  EXPECT_NE(Model::load(tiny_model("llama"), backend)->chat_template(), nullptr);
  EXPECT_EQ(Model::load(tiny_model("gemma3"), backend)->chat_template(), nullptr);
}

}  // namespace
}  // namespace precis::test
