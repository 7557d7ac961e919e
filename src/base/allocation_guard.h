// Keeps allocations out of loops that must not have any. In checked builds (Debug, which defines
// PRECIS_ALLOCATION_GUARD) operator new aborts with a message while an AllocationForbidden is alive
// on the same thread, unless an AllocationAllowed is alive inside it. In other builds both are
// nothing. They nest.
#pragma once

#include <cstddef>

namespace precis {

#ifdef PRECIS_ALLOCATION_GUARD

class AllocationForbidden {
 public:
  // where: what must not allocate, for the message; a literal. Does nothing if not `active`.
  explicit AllocationForbidden(const char* where, bool active = true);
  ~AllocationForbidden();
  AllocationForbidden(const AllocationForbidden&) = delete;

 private:
  const char* before_;
};

class AllocationAllowed {
 public:
  // why: for the reader. Does nothing if not `active`.
  explicit AllocationAllowed(const char* why, bool active = true);
  ~AllocationAllowed();
  AllocationAllowed(const AllocationAllowed&) = delete;

 private:
  const char* before_;
};

#else

class AllocationForbidden {
 public:
  explicit AllocationForbidden(const char*, bool = true) {}
  ~AllocationForbidden() {}
};

class AllocationAllowed {
 public:
  explicit AllocationAllowed(const char*, bool = true) {}
  ~AllocationAllowed() {}
};

#endif

}  // namespace precis
