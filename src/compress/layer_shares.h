// Turns wished shares into whole numbers with a fixed sum.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace precis {

struct ShareBounds {
  std::size_t least = 0;
  std::size_t most = 0;
};

// As near to `wanted` as whole numbers inside of their bounds that sum up to `total` are: too much
// is taken in proportion to what each has over its least, and what is missing is given in
// proportion to what each was wished, up to its most. REQUIRES: finite wishes, least <= most for
// each, and a total between the sums of least and most.
std::vector<std::size_t> share_out(const std::vector<double>& wanted, std::size_t total,
                                   std::span<const ShareBounds> bounds);

}  // namespace precis
