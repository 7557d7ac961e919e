#include "cache/row_memory.h"

#include <sys/mman.h>

#include <new>

namespace precis {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Small blocks would waste most of a huge page.
std::size_t alignment_of(std::size_t bytes) { return bytes >= 2 * kHugePage ? kHugePage : kLine; }

}  // namespace

void* allocate_rows(std::size_t bytes) {
  const std::size_t alignment = alignment_of(bytes);
  void* memory = ::operator new (bytes, std::align_val_t{alignment});
  // Only whole pages of ours; a refusal (no such kernel feature) changes nothing but speed.
  if (alignment == kHugePage) ::madvise(memory, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
  return memory;
}

void free_rows(void* memory, std::size_t bytes) noexcept {
  ::operator delete (memory, bytes, std::align_val_t{alignment_of(bytes)});
}

}  // namespace precis
