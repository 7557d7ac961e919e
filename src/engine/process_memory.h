// Memory of this process as the kernel counts it.
#pragma once

#include <cstddef>

namespace precis {

// Resident bytes now, and the most there ever were (or since the last reset). 0 if the kernel does
// not say.
std::size_t resident_bytes();
std::size_t peak_resident_bytes();
// Starts the peak anew from the present; false if the kernel does not allow it.
bool reset_peak_resident_bytes();

}  // namespace precis
