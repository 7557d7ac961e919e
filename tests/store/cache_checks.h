// What the tests of cache files share: a session to save, and files changed byte by byte.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/session_checks.h"
#include "store/cache_file.h"
#include "store/cache_layout.h"
#include "store/checksum.h"

namespace precis::test {

using Bytes = std::vector<char>;

inline Bytes read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_bytes(const std::string& path, const Bytes& bytes) {
  // Some file systems bring a file to the disk at once if it was cut to nothing and written anew.
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

// A folder of the running test's own, gone with the object.
class ScratchFolder {
 public:
  ScratchFolder() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    std::string name = std::string(info->test_suite_name()) + "." + info->name();
    for (char& c : name)
      if (c == '/') c = '_';
    path_ = std::filesystem::path(testing::TempDir()) / (name + "." + std::to_string(::getpid()));
    std::filesystem::create_directories(path_);
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;

  std::string file(const std::string& name) const { return (path_ / name).string(); }
  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const auto& entry : std::filesystem::directory_iterator(path_))
      out.push_back(entry.path().filename().string());
    return out;
  }

 private:
  std::filesystem::path path_;
};

// The same product of weights in every engine: which is faster may be measured differently.
inline std::shared_ptr<const Engine> tiny_engine(const std::string& name) {
  return Engine::load(
      tiny_model(name),
      {.n_threads = 1, .matmul = MatmulMode::kSgemm, .weights = WeightsMode::kFile});
}

inline CacheMeta meta_of(CompressionReport report, std::span<const Token> tokens = {}) {
  CacheMeta meta;
  meta.writer = "test";
  meta.report = std::move(report);
  meta.seed = 7;
  meta.prefill_ms = 1.5;
  meta.tokens.assign(tokens.begin(), tokens.end());
  meta.document = "a text\n";
  return meta;
}

// A file taken apart as docs/CACHE_FORMAT.md says, and put together again with right checksums.
class CacheBytes {
 public:
  explicit CacheBytes(Bytes bytes) : bytes_(std::move(bytes)) {}

  const Bytes& bytes() const { return bytes_; }
  Bytes& bytes() { return bytes_; }
  std::size_t n_sections() const { return number<std::uint32_t>(12); }

  template <class T>
  T number(std::size_t at) const {
    T value;
    std::memcpy(&value, bytes_.data() + at, sizeof value);
    return value;
  }
  template <class T>
  void set(std::size_t at, T value) {
    std::memcpy(bytes_.data() + at, &value, sizeof value);
  }
  std::size_t entry(std::size_t section) const { return 64 + section * 32; }
  std::size_t offset(std::size_t section) const {
    return number<std::uint64_t>(entry(section) + 8);
  }
  std::size_t size(std::size_t section) const { return number<std::uint64_t>(entry(section) + 16); }

  // Checksums of the sections, as far as they lie in the file, the table and the header.
  void sign() {
    for (std::size_t i = 0; i < n_sections() && entry(i) + 32 <= bytes_.size(); ++i) {
      const std::size_t n = (size(i) + 63) / 64 * 64;
      if (offset(i) > bytes_.size() || n > bytes_.size() - offset(i) || n < size(i)) continue;
      const std::uint64_t seed = std::uint64_t{number<std::uint32_t>(entry(i))} << 32 |
                                 number<std::uint32_t>(entry(i) + 4);
      set(entry(i) + 24, checksum_of(bytes_.data() + offset(i), n, seed));
    }
    const std::size_t table = (n_sections() * 32 + 63) / 64 * 64;
    if (64 + table <= bytes_.size()) set(24, checksum_of(bytes_.data() + 64, table));
    set(56, checksum_of(bytes_.data(), 56));
  }

 private:
  Bytes bytes_;
};

}  // namespace precis::test
