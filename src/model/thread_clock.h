// Time in which this thread ran. The thread that computes a graph takes part in it and spins at its
// barriers, so on an idle machine this is the time that passed; on a busy one it leaves out most of
// what others took (with a load of 10 on two cores, wall time put off the f32 product from 8 tokens
// to 128).
#pragma once

#include <ctime>

namespace precis {

inline double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace precis
