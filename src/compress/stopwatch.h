// Wall time of one stage after another.
#pragma once

#include <chrono>

namespace precis {

class Stopwatch {
 public:
  // Milliseconds since construction or since the last lap.
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    const double ms = std::chrono::duration<double, std::milli>(now - start_).count();
    start_ = now;
    return ms;
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace precis
