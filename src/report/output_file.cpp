#include "report/output_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/error.h"

namespace precis {
namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Error(ErrorCode::kIo, concat("cannot write '", path, "': ", why));
}

// fclose too can be what finds a full disk.
int write_all(const std::string& path, std::string_view text) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return errno;
  int status = 0;
  if (std::fwrite(text.data(), 1, text.size(), file) != text.size()) status = errno;
  if (std::fclose(file) != 0 && status == 0) status = errno;
  return status;
}

}  // namespace

void write_file(const std::string& path, std::string_view text) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) refuse(path, "it is a directory");
  if (std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored)) {
    if (const int status = write_all(path, text)) refuse(path, std::strerror(status));
    return;
  }
  // Two processes that write the same file do not share the temporary one.
  const std::string temporary = concat(path, ".", ::getpid(), ".tmp");
  if (const int status = write_all(temporary, text)) {
    std::filesystem::remove(temporary, ignored);
    refuse(path, std::strerror(status));
  }
  std::error_code failed;
  std::filesystem::rename(temporary, path, failed);
  if (!failed) return;
  std::filesystem::remove(temporary, ignored);
  refuse(path, failed.message());
}

}  // namespace precis
