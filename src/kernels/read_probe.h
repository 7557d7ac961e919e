// Streams memory through the registers and does nothing else: the fastest that one thread can read,
// against which the speed of attention over a cache is judged.
#pragma once

#include <cstddef>
#include <cstdint>

namespace precis {

// Exclusive or of words[0..n). Loads every word once, in order, in the widest vectors of the
// machine; about one instruction a cache line beside the loads. Thread-safe.
std::uint64_t read_words(const std::uint64_t* words, std::size_t n);

}  // namespace precis
