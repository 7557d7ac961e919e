#include "methods/pooling.h"

#include <algorithm>

#include "base/error.h"

namespace precis {
namespace {

// Calls store(j, first, last) with the part [first, last) of the span under the kernel at j.
template <class Store>
void slide(std::size_t n, int width, Store store) {
  const std::size_t reach = static_cast<std::size_t>(width) / 2;
  for (std::size_t j = 0; j < n; ++j)
    store(j, j > reach ? j - reach : 0, std::min(n, j + reach + 1));
}

}  // namespace

void check_pool_width(int width) {
  if (width % 2 == 0)
    throw Error(ErrorCode::kInvalidArgument, concat("parameter 'pool' = '", width,
                                                    "' must be odd: an even kernel has no centre"));
}

void average_pool(std::span<const float> scores, int width, std::span<float> pooled) {
  // Summed anew at every j: a running sum would let a huge score leave its rounding error behind.
  slide(scores.size(), width, [&](std::size_t j, std::size_t first, std::size_t last) {
    float sum = 0.0f;
    for (std::size_t i = first; i < last; ++i) sum += scores[i];
    pooled[j] = sum / static_cast<float>(width);
  });
}

void max_pool(std::span<const float> scores, int width, std::span<float> pooled) {
  slide(scores.size(), width, [&](std::size_t j, std::size_t first, std::size_t last) {
    pooled[j] = *std::max_element(scores.begin() + static_cast<std::ptrdiff_t>(first),
                                  scores.begin() + static_cast<std::ptrdiff_t>(last));
  });
}

}  // namespace precis
