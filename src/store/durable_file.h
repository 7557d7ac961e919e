// A file that is complete and on the disk, or not there: large binary files, written piece by
// piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace precis {

// Writes to a file without a name where the file system has such, so that nothing is left when the
// process is killed; else to a hidden temporary one in the same folder. commit() gives it the name;
// without it the destructor leaves everything as it was. One thread.
class DurableFile {
 public:
  enum class Before { kUnnamed, kNamed };  // what it is before commit(); kUnnamed if there is such
  // Throws Error(kIo) if `path` could not be written: no such folder, no permission, a directory,
  // or something that is no regular file. A link of that name will be replaced, not followed.
  explicit DurableFile(const std::string& path, Before before = Before::kUnnamed);
  ~DurableFile();
  DurableFile(const DurableFile&) = delete;

  // Appends. Throws Error(kIo), as do the others.
  void write(const void* bytes, std::size_t n);
  // Over what was written already.
  void write_at(std::uint64_t offset, const void* bytes, std::size_t n);
  // Brings it all to the disk, then renames, so that an older file of that name is whole until the
  // new one is.
  void commit();

 private:
  void create(Before before);
  void link();
  void remove_temporary() noexcept;
  [[noreturn]] void refuse(const char* what, int status) const;

  std::string path_;
  std::string folder_;
  std::string temporary_;  // empty: the file has no name yet
  int fd_ = -1;
  std::uint64_t size_ = 0;
};

}  // namespace precis
