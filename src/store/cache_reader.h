// Reads the sections of a cache file. What it hands out has been compared with its checksum.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "store/cache_layout.h"
#include "store/checksum.h"

namespace precis {

class CacheReader {
 public:
  // Opens the file and checks header and table against its size: from then on every section lies
  // within the file.
  explicit CacheReader(const std::string& path);
  ~CacheReader();
  CacheReader(const CacheReader&) = delete;

  std::uint64_t file_bytes() const { return file_bytes_; }
  std::size_t n_layers() const { return n_layers_; }
  const Section& section(SectionKind kind, std::size_t layer = 0) const {
    return sections_[section_index(kind, layer)];
  }
  // All of a section.
  std::vector<std::uint8_t> read(const Section& section) const;

  // The file is not what it claims to be.
  [[noreturn]] void reject(const std::string& why) const;

 private:
  friend class SectionStream;
  void read_header();
  void read_table(std::uint64_t checksum);
  void read_at(std::uint64_t offset, void* to, std::size_t n) const;

  std::string path_;
  int fd_ = -1;
  std::uint64_t file_bytes_ = 0;
  std::size_t n_layers_ = 0;
  std::vector<Section> sections_;
};

// A section array by array, straight to where it belongs: nothing of it may be believed before
// finish().
class SectionStream {
 public:
  SectionStream(const CacheReader& reader, const Section& section)
      : reader_(reader), section_(section), checksum_(section.seed()) {}
  // The next n bytes and the zeros up to the next array. REQUIRES: they are in the section.
  void read(void* to, std::size_t n);
  // Reads what is left and compares the checksum.
  void finish();

 private:
  const CacheReader& reader_;
  const Section& section_;
  Checksum checksum_;
  std::uint64_t done_ = 0;
};

}  // namespace precis
