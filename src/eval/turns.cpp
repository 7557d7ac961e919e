#include "eval/turns.h"

#include <chrono>

namespace precis {

Clock steady_clock() {
  return [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  };
}

std::vector<std::vector<double>> measure_in_turns(std::span<const Contender> contenders,
                                                  const TurnOptions& options, const Clock& clock) {
  std::vector<std::vector<double>> seconds(contenders.size());
  const std::size_t total = options.warmup + options.repetitions;
  for (std::size_t round = 0; round < total; ++round) {
    for (std::size_t i = 0; i < contenders.size(); ++i) {
      const Contender& contender = contenders[i];
      if (contender.prepare) contender.prepare();
      const double start = clock();
      contender.run();
      const double end = clock();
      if (round >= options.warmup) seconds[i].push_back(end - start);
      if (contender.finish) contender.finish();
    }
    if (options.progress) options.progress(round + 1, total);
  }
  return seconds;
}

}  // namespace precis
