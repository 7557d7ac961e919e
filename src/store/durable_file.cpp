#include "store/durable_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/error.h"

namespace precis {
namespace {

constexpr mode_t kMode = 0666;  // less the umask
// One call writes less than 2 GiB; smaller pieces also let a signal through.
constexpr std::size_t kMostBytes = std::size_t{64} << 20;

// Not the file's own name with something added: that may be longer than names can be.
std::string temporary_name(const std::string& folder) {
  static std::atomic<unsigned> count{0};
  return concat(folder, "/.precis-", ::getpid(), "-", count++, ".tmp");
}

std::string self_link(int fd) { return concat("/proc/self/fd/", fd); }

}  // namespace

DurableFile::DurableFile(const std::string& path, Before before) : path_(path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  folder_ = parent.empty() ? "." : parent.string();
  struct stat info {};
  if (path.empty() || path.back() == '/') refuse("it is not the name of a file", 0);
  if (::stat(path.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode)) refuse("it is a directory", 0);
    if (!S_ISREG(info.st_mode)) refuse("it exists and is not a regular file", 0);
  } else if (errno != ENOENT) {
    refuse("", errno);
  }
  create(before);
}

DurableFile::~DurableFile() {
  remove_temporary();
  if (fd_ >= 0) ::close(fd_);
}

void DurableFile::create(Before before) {
  if (before == Before::kUnnamed)
    fd_ = ::open(folder_.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, kMode);
  // Such a file gets its name through /proc, which need not be there.
  if (fd_ >= 0 && ::access(self_link(fd_).c_str(), F_OK) == 0) return;
  if (fd_ >= 0) ::close(fd_);
  // Names of a killed process with the same number may be left.
  do {
    temporary_ = temporary_name(folder_);
    fd_ = ::open(temporary_.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, kMode);
  } while (fd_ < 0 && errno == EEXIST);
  if (fd_ >= 0) return;
  const int status = errno;
  temporary_.clear();
  refuse("", status);
}

void DurableFile::write(const void* bytes, std::size_t n) {
  write_at(size_, bytes, n);
  size_ += n;
}

void DurableFile::write_at(std::uint64_t offset, const void* bytes, std::size_t n) {
  const auto* from = static_cast<const char*>(bytes);
  while (n > 0) {
    const ssize_t written =
        ::pwrite(fd_, from, std::min(n, kMostBytes), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) refuse("", errno);
    if (written == 0) refuse("nothing more is taken", 0);
    from += written;
    n -= static_cast<std::size_t>(written);
    offset += static_cast<std::uint64_t>(written);
  }
}

void DurableFile::link() {
  int status = 0;
  do {
    const std::string name = temporary_name(folder_);
    status = ::linkat(AT_FDCWD, self_link(fd_).c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW);
    if (status == 0) temporary_ = name;
  } while (status != 0 && errno == EEXIST);
  if (status != 0) refuse("", errno);
}

void DurableFile::commit() {
  if (::fsync(fd_) != 0) refuse("", errno);
  if (temporary_.empty()) link();
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) refuse("", errno);
  temporary_.clear();
  // The name too must be on the disk. Some file systems have no such call for folders.
  const int folder = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;  // a folder that may be written but not read
  const int status = ::fsync(folder) == 0 ? 0 : errno;
  ::close(folder);
  if (status != 0 && status != EINVAL && status != ENOTSUP && status != EROFS) refuse("", status);
}

void DurableFile::remove_temporary() noexcept {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  temporary_.clear();
}

void DurableFile::refuse(const char* what, int status) const {
  throw Error(ErrorCode::kIo,
              concat("cannot write '", path_, "': ", status == 0 ? what : std::strerror(status)));
}

}  // namespace precis
