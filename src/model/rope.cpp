#include "model/rope.h"

#include <ggml.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace precis {

Rope describe_rope(const ModelConfig& config, std::size_t layer, std::span<const float> factors) {
  const RopeConfig& from = config.rope(layer);
  const std::size_t n_pairs = config.n_rot / 2;
  PRECIS_CHECK(factors.empty() || factors.size() == n_pairs, factors.size(), " factors for ",
               n_pairs, " pairs");
  Rope rope;
  rope.n_rot = config.n_rot;
  rope.interleaved = config.rope_pairs == RopePairs::kAdjacent;
  float bounds[2];
  ggml_rope_yarn_corr_dims(static_cast<int>(config.n_rot), static_cast<int>(config.n_ctx_orig),
                           from.base, kYarnBetaFast, kYarnBetaSlow, bounds);
  const auto low = static_cast<double>(bounds[0]);
  const double width = std::max(0.001, static_cast<double>(bounds[1]) - low);
  const auto scale = static_cast<double>(from.freq_scale);
  const auto yarn = static_cast<double>(from.ext_factor);
  for (std::size_t i = 0; i < n_pairs; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(config.n_rot);
    const double plain = std::pow(static_cast<double>(from.base), exponent) /
                         (factors.empty() ? 1.0 : static_cast<double>(factors[i]));
    // The part of the unscaled frequency: 1 below the lower bound, 0 above the upper one.
    const double ramp = 1.0 - std::clamp((static_cast<double>(i) - low) / width, 0.0, 1.0);
    const double mix = yarn * ramp;
    rope.frequencies.push_back(plain * (scale * (1.0 - mix) + mix));
  }
  rope.magnitude = from.attn_factor;
  if (yarn != 0.0) rope.magnitude *= static_cast<float>(1.0 - 0.1 * std::log(scale));
  return rope;
}

}  // namespace precis
