// XXH64, by which cache files tell damage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace precis {

class Checksum {
 public:
  explicit Checksum(std::uint64_t seed = 0);
  ~Checksum();
  void add(const void* bytes, std::size_t n);
  // Of everything added so far.
  std::uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::uint64_t checksum_of(const void* bytes, std::size_t n, std::uint64_t seed = 0);

}  // namespace precis
