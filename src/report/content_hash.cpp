#include "report/content_hash.h"

extern "C" {
#include <hash/sha256/sha256.h>
}

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <vector>

#include "base/error.h"

namespace precis {
namespace {

class Hasher {
 public:
  Hasher() { sha256_init(&state_); }
  void add(std::span<const char> bytes) {
    sha256_update(&state_, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  }
  std::string finish() {
    unsigned char digest[SHA256_DIGEST_SIZE];
    sha256_final(&state_, digest);
    std::string text;
    for (const unsigned char byte : digest) {
      constexpr const char* kHex = "0123456789abcdef";
      text += kHex[byte >> 4];
      text += kHex[byte & 15];
    }
    return text;
  }

 private:
  sha256_t state_;
};

}  // namespace

std::string sha256_of_bytes(std::span<const char> bytes) {
  Hasher hasher;
  hasher.add(bytes);
  return hasher.finish();
}

std::string sha256_of_file(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    throw Error(ErrorCode::kIo, concat("'", path, "' is a directory, not a file"));
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             std::fclose);
  if (!file)
    throw Error(ErrorCode::kIo, concat("cannot open '", path, "': ", std::strerror(errno)));
  Hasher hasher;
  std::vector<char> block(1 << 20);
  while (const std::size_t n = std::fread(block.data(), 1, block.size(), file.get()))
    hasher.add(std::span(block).first(n));
  if (std::ferror(file.get()) != 0)
    throw Error(ErrorCode::kIo, concat("cannot read '", path, "': ", std::strerror(errno)));
  return hasher.finish();
}

}  // namespace precis
