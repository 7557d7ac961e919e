// RoPE of a model's layers as plain numbers, for what turns rows outside of the graphs.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/rope.h"
#include "model/config.h"

namespace precis {

// YaRN's bounds, in turns over the original context, between which frequencies pass from scaled to
// unscaled: its defaults, which llama.cpp fixes too.
constexpr float kYarnBetaFast = 32.0f;
constexpr float kYarnBetaSlow = 1.0f;

// What ggml_rope_ext does in that layer's graph. factors: rope_freqs.weight, [n_rot / 2], or empty.
// ggml multiplies angles up in f32 from pair to pair, so at position p those of pair i are up to
// about p * frequency * (i + 2) * 1.2e-7 away from these.
Rope describe_rope(const ModelConfig& config, std::size_t layer, std::span<const float> factors);

}  // namespace precis
