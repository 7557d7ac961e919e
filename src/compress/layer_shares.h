// Turns wished shares into whole numbers with a fixed sum.
#pragma once

#include <cstddef>
#include <vector>

namespace precis {

// As near to `wanted` as whole numbers from least to most that sum up to `total` are: too much is
// taken in proportion to what each has over `least`, and what is missing is given in proportion to
// what each was wished, at most up to `most`. REQUIRES: finite wishes, least <= most, and least * n
// <= total <= most * n.
std::vector<std::size_t> share_out(const std::vector<double>& wanted, std::size_t total,
                                   std::size_t least, std::size_t most);

}  // namespace precis
