// Measures several things in turns: A B C A B C ... What else the machine does meanwhile then hits
// all of them alike, and ratios of one round are worth more than the times themselves.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace precis {

// Seconds since some fixed point, never going back. Tests bring their own.
using Clock = std::function<double()>;
Clock steady_clock();

// Only run is timed. prepare and finish may be empty. What they throw ends the measurement.
struct Contender {
  std::function<void()> prepare;
  std::function<void()> run;
  std::function<void()> finish;
};

struct TurnOptions {
  std::size_t warmup = 1;  // rounds that are not reported
  std::size_t repetitions = 5;
  // Called after each round with rounds done and rounds in all; may be empty.
  std::function<void(std::size_t done, std::size_t total)> progress;
};

// seconds[contender][repetition].
std::vector<std::vector<double>> measure_in_turns(std::span<const Contender> contenders,
                                                  const TurnOptions& options, const Clock& clock);

}  // namespace precis
