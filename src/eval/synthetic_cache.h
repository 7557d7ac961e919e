// Caches filled with random rows, to measure decoding at depths that would take long to read or
// that lie beyond the model's context. What the rows say is nonsense; how many bytes they take is
// not.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/session.h"

namespace precis {

// The condenser that reading n_tokens tokens would use: its budget is what counts here. Throws what
// Condenser throws.
Condenser condenser_for(const Engine& engine, const CondenseRequest& request, std::size_t n_tokens);

// The layers that the request's method would leave of n_tokens tokens, one per model layer and
// nullptr for sliding ones, as Session::restore takes them. Entries per head, biases and positions
// follow from the condenser's arithmetic, so the bytes are what the method would keep. Keys and
// values are normal with standard deviation 1. n_distinct: how many layers get rows of their own;
// the others share those in turn (0: all), for depths that do not fit the memory. Throws what
// Condenser throws.
std::vector<std::shared_ptr<const FrozenLayer>> synthetic_layers(const Engine& engine,
                                                                 const CondenseRequest& request,
                                                                 std::size_t n_tokens,
                                                                 std::size_t n_distinct = 0);

// Where a session over such a cache goes on: the middle of the model's context, or earlier when
// n_more tokens would not fit after it. Throws Error(kInvalidArgument) if they fit nowhere.
std::size_t synthetic_position(const ModelConfig& config, std::size_t n_more);

}  // namespace precis
