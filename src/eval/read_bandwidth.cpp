#include "eval/read_bandwidth.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "base/error.h"
#include "eval/statistics.h"
#include "kernels/read_probe.h"

namespace precis {
namespace {

// Small enough that no worker idles long at the end of a pass, large enough that taking a chunk
// costs nothing: 4 MiB are 0.2 ms at 20 GB/s.
constexpr std::size_t kChunkWords = std::size_t{4} << 20 >> 3;

}  // namespace

ReadBandwidth measure_read_bandwidth(Executor& executor, std::size_t bytes, std::size_t n_passes,
                                     const Clock& clock) {
  PRECIS_CHECK(bytes > 0 && n_passes > 0, bytes, " bytes, ", n_passes, " passes");
  const std::size_t n_chunks = (bytes / sizeof(std::uint64_t) + kChunkWords - 1) / kChunkWords;
  // Not zeros: the kernel may map one page of zeros many times.
  std::vector<std::uint64_t> words(n_chunks * kChunkWords, 0x9e3779b97f4a7c15u);
  std::atomic<std::uint64_t> sum{0};
  const auto pass = [&] {
    executor.run(n_chunks, [&](std::size_t i, std::size_t) {
      sum ^= read_words(words.data() + i * kChunkWords, kChunkWords);
    });
  };
  std::vector<double> seconds =
      measure_in_turns(std::vector<Contender>{{{}, pass, {}}}, {1, n_passes, {}}, clock).front();
  // Each chunk has an even number of equal words.
  PRECIS_CHECK(sum == 0, sum.load());
  for (double& s : seconds)
    s = static_cast<double>(words.size() * sizeof(std::uint64_t)) / std::max(s, 1e-9) / 1e9;
  return {*std::max_element(seconds.begin(), seconds.end()), median_of(seconds)};
}

std::size_t probe_bytes() {
  std::size_t last = 0;
#ifdef _SC_LEVEL3_CACHE_SIZE
  last = static_cast<std::size_t>(std::max(0L, sysconf(_SC_LEVEL3_CACHE_SIZE)));
#endif
  return std::max(std::size_t{256} << 20, 8 * last);
}

}  // namespace precis
