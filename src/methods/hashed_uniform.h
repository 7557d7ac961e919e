// Randomness of methods: a hash of the head's seed and the token, so that a choice depends on the
// seed only, never on threads or on the order of calls.
#pragma once

#include <cstdint>

namespace precis {

// In [0, 1), exact in f32. HeadView::seed is already mixed with layer and head.
float hashed_uniform(std::uint64_t seed, std::uint64_t token);

}  // namespace precis
