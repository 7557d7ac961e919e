// The memory in which the backend computes on a weight fastest. Not for other folders.
#pragma once

#include <optional>

#include "model/ggml_backend.h"

namespace precis {

enum class WeightUse { kMatrix, kLookup };

// The first buffer type among the backend's weight_buffer_types() on which it can run the operation
// that will use a tensor [n_in, n_out] of that type; nothing if there is none.
std::optional<ggml_backend_buffer_type_t> find_buffer_type(const Backend::Impl& backend,
                                                           ggml_type type, std::int64_t n_in,
                                                           std::int64_t n_out, WeightUse use);

}  // namespace precis
