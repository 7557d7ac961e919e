#include "app/text_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "base/error.h"
#include "base/utf8.h"

namespace precis::app {
namespace {

// A million tokens are about 4 MB; a document without end must not fill the memory.
constexpr std::size_t kMaxTextBytes = std::size_t{64} << 20;

void read_blocks(const std::string& path,
                 const std::function<void(const char*, std::size_t)>& take) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    throw Error(ErrorCode::kIo, concat("'", path, "' is a directory, not a file"));
  const bool standard_input = path == "-";
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(
      standard_input ? stdin : std::fopen(path.c_str(), "rb"),
      standard_input ? [](std::FILE*) { return 0; } : std::fclose);
  if (!file)
    throw Error(ErrorCode::kIo, concat("cannot open '", path, "': ", std::strerror(errno)));
  std::vector<char> block(1 << 20);
  while (const std::size_t n = std::fread(block.data(), 1, block.size(), file.get()))
    take(block.data(), n);
  if (std::ferror(file.get()) != 0)
    throw Error(ErrorCode::kIo, concat("cannot read '", path, "': ", std::strerror(errno)));
}

}  // namespace

TextFile read_text_file(const std::string& path) {
  TextFile out;
  Utf8Assembler characters;
  read_blocks(path, [&](const char* data, std::size_t n) {
    out.text += characters.push({data, n});
    if (out.text.size() > kMaxTextBytes)
      throw Error(ErrorCode::kInvalidArgument,
                  concat("'", path, "' has more than ", kMaxTextBytes,
                         " bytes: no model's context holds so long a text"));
  });
  out.text += characters.finish();
  out.n_replaced = characters.n_replaced();
  return out;
}

}  // namespace precis::app
