#include "app/text_file.h"

#include <algorithm>
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

std::vector<std::string> list_files(const std::vector<std::string>& paths) {
  std::vector<std::string> out;
  for (const std::string& path : paths) {
    if (path == "-")
      throw Error(ErrorCode::kInvalidArgument,
                  "a run must be able to read its texts again: give a file, not standard input");
    std::error_code error;
    if (!std::filesystem::is_directory(path, error)) {
      out.push_back(path);
      continue;
    }
    std::vector<std::string> found;
    std::filesystem::directory_iterator entries(path, error);
    for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
      std::error_code is_no_file;
      if (entries->is_regular_file(is_no_file)) found.push_back(entries->path().string());
    }
    if (error)
      throw Error(ErrorCode::kIo, concat("cannot read the folder '", path, "': ", error.message()));
    if (found.empty()) throw Error(ErrorCode::kIo, concat("the folder '", path, "' has no files"));
    std::sort(found.begin(), found.end());
    out.insert(out.end(), found.begin(), found.end());
  }
  return out;
}

std::string read_text(const std::string& path) {
  TextFile text = read_text_file(path);
  if (text.n_replaced > 0)
    std::fprintf(stderr, "precis: '%s' is not valid UTF-8; replaced by U+FFFD in %zu places\n",
                 path.c_str(), text.n_replaced);
  return std::move(text.text);
}

}  // namespace precis::app
