// Memory for rows that are read from end to end again and again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace precis {

// Allocates whole cache lines; large blocks begin at a 2 MiB boundary and ask the kernel for huge
// pages, since a stream over 4 KiB pages stops the processor's prefetching at every page.
void* allocate_rows(std::size_t bytes);  // throws std::bad_alloc
void free_rows(void* memory, std::size_t bytes) noexcept;

template <class T>
struct RowAllocator {
  using value_type = T;
  RowAllocator() = default;
  template <class U>
  RowAllocator(const RowAllocator<U>&) {}
  T* allocate(std::size_t n) { return static_cast<T*>(allocate_rows(n * sizeof(T))); }
  void deallocate(T* p, std::size_t n) noexcept { free_rows(p, n * sizeof(T)); }
  template <class U>
  bool operator==(const RowAllocator<U>&) const {
    return true;
  }
};

using RowMemory = std::vector<std::uint8_t, RowAllocator<std::uint8_t>>;

}  // namespace precis
