// Numbers and texts in a row of bytes, in the order in which they are written and read.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/error.h"

namespace precis {

class ByteWriter {
 public:
  template <class T>
  requires std::is_arithmetic_v<T>
  void number(T value) { text({reinterpret_cast<const char*>(&value), sizeof value}); }
  void text(std::string_view bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }

  const std::vector<std::uint8_t>& bytes() const { return bytes_; }

 private:
  std::vector<std::uint8_t> bytes_;
};

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  std::size_t left() const { return bytes_.size(); }
  // REQUIRES: so many bytes are left; the caller has compared sizes before.
  template <class T>
  requires std::is_arithmetic_v<T> T number() {
    T value;
    PRECIS_CHECK(sizeof value <= bytes_.size(), bytes_.size());
    std::memcpy(&value, bytes_.data(), sizeof value);
    bytes_ = bytes_.subspan(sizeof value);
    return value;
  }
  std::string text(std::size_t n) {
    PRECIS_CHECK(n <= bytes_.size(), n, " of ", bytes_.size());
    std::string out(reinterpret_cast<const char*>(bytes_.data()), n);
    bytes_ = bytes_.subspan(n);
    return out;
  }

 private:
  std::span<const std::uint8_t> bytes_;
};

}  // namespace precis
