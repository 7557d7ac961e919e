// How fast this machine's threads read memory: the bound of decoding.
#pragma once

#include <cstddef>

#include "base/executor.h"
#include "eval/turns.h"

namespace precis {

struct ReadBandwidth {
  double best_gb_s = 0;    // 10^9 bytes a second, of the fastest pass
  double median_gb_s = 0;  // of all passes
};

// All workers of the executor stream through a buffer of `bytes` (rounded up to whole chunks), once
// before and n_passes times on the clock. The buffer should be far larger than the last cache:
// probe_bytes() is.
ReadBandwidth measure_read_bandwidth(Executor& executor, std::size_t bytes, std::size_t n_passes,
                                     const Clock& clock);

// 256 MiB, or 8 times the last-level cache if that is more.
std::size_t probe_bytes();

}  // namespace precis
