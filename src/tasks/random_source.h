// Random draws that are the same on every platform: the standard fixes the numbers of its engines,
// but not what its distributions and std::shuffle make of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace precis {

class RandomSource {
 public:
  explicit RandomSource(std::uint64_t seed) : engine_(seed) {}
  // One sequence for each combination.
  RandomSource(std::uint64_t seed, std::string_view name, std::uint64_t index)
      : engine_(mixed(mixed(mixed(seed) ^ hash_of(name)) ^ index)) {}

  std::uint64_t bits() { return engine_(); }

  // Uniform in 0 ... bound - 1. REQUIRES: bound > 0.
  std::uint64_t below(std::uint64_t bound) {
    PRECIS_CHECK(bound > 0);
    // The first (2^64 mod bound) numbers would make some remainders likelier than others.
    const std::uint64_t rejected = (0 - bound) % bound;
    std::uint64_t drawn = engine_();
    while (drawn < rejected) drawn = engine_();
    return drawn % bound;
  }

  // REQUIRES: not empty.
  template <class T>
  const T& pick(const std::vector<T>& from) {
    return from[static_cast<std::size_t>(below(from.size()))];
  }

  template <class T>
  void shuffle(std::vector<T>& items) {
    shuffle_first(items, items.size());
  }

  // Puts a random choice of n_first items, in random order, in front.
  template <class T>
  void shuffle_first(std::vector<T>& items, std::size_t n_first) {
    for (std::size_t i = 0; i < n_first && i + 1 < items.size(); ++i)
      std::swap(items[i], items[i + static_cast<std::size_t>(below(items.size() - i))]);
  }

 private:
  // FNV-1a.
  static std::uint64_t hash_of(std::string_view text) {
    std::uint64_t hash = 0xcbf29ce484222325U;
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
    return hash;
  }
  // The output step of SplitMix64: neighbouring seeds and indices become unrelated.
  static std::uint64_t mixed(std::uint64_t x) {
    x += 0x9e3779b97f4a7c15U;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
    return x ^ (x >> 31);
  }

  std::mt19937_64 engine_;
};

}  // namespace precis
