// Memory of this process as the kernel counts it.
#pragma once

#include <cstddef>

namespace precis {

// Resident bytes now, and the most there ever were (or since the last reset). 0 if the kernel does
// not say.
std::size_t resident_bytes();
std::size_t peak_resident_bytes();
// Gives freed memory that the allocator keeps for later back to the kernel, so that what is
// resident is what is held. Does nothing where the C library cannot.
void release_free_memory();
// Starts the peak anew from the present; false if the kernel does not allow it.
bool reset_peak_resident_bytes();

}  // namespace precis
