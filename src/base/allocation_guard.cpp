#include "base/allocation_guard.h"

#ifdef PRECIS_ALLOCATION_GUARD

#include <cstdlib>
#include <new>

#include "base/error.h"

namespace precis {
namespace {

thread_local const char* forbidden_in = nullptr;

void check(std::size_t size) {
  if (forbidden_in == nullptr) return;
  const char* where = forbidden_in;
  forbidden_in = nullptr;  // the message below may allocate
  PRECIS_CHECK(where == nullptr, "allocation of ", size, " bytes in ", where,
               ", which must not allocate");
}

void* allocate(std::size_t size) {
  check(size);
  if (void* memory = std::malloc(size > 0 ? size : 1)) return memory;
  throw std::bad_alloc();
}

void* allocate(std::size_t size, std::align_val_t alignment) {
  check(size);
  const auto step = static_cast<std::size_t>(alignment);
  if (void* memory = std::aligned_alloc(step, (size + step - 1) / step * step)) return memory;
  throw std::bad_alloc();
}

}  // namespace

AllocationForbidden::AllocationForbidden(const char* where, bool active) : before_(forbidden_in) {
  if (active) forbidden_in = where;
}
AllocationForbidden::~AllocationForbidden() { forbidden_in = before_; }

AllocationAllowed::AllocationAllowed(const char*, bool active) : before_(forbidden_in) {
  if (active) forbidden_in = nullptr;
}
AllocationAllowed::~AllocationAllowed() { forbidden_in = before_; }

}  // namespace precis

// All forms, so that no pair of them is split between this file and a sanitizer's own. The forms
// that do not throw call these in the standard library; sanitizers replace them, hence here too.
void* operator new(std::size_t n) { return precis::allocate(n); }
void* operator new[](std::size_t n) { return precis::allocate(n); }
void* operator new(std::size_t n, std::align_val_t a) { return precis::allocate(n, a); }
void* operator new[](std::size_t n, std::align_val_t a) { return precis::allocate(n, a); }
void* operator new(std::size_t n, const std::nothrow_t&) noexcept {
  precis::check(n);
  return std::malloc(n > 0 ? n : 1);
}
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept {
  precis::check(n);
  return std::malloc(n > 0 ? n : 1);
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { std::free(p); }

#endif
