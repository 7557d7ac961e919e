#include "eval/cost_model.h"

#include <cmath>
#include <vector>

#include "eval/statistics.h"

namespace precis {
namespace {

std::optional<Fit> fit_samples(std::span<const CostSample> samples) {
  std::vector<double> x;
  std::vector<double> y;
  for (const CostSample& sample : samples) {
    x.push_back(sample.x);
    y.push_back(sample.seconds);
  }
  return fit_line(x, y);
}

}  // namespace

BreakEvenResult break_even_prompt(const BreakEvenInput& input) {
  const auto step = fit_samples(input.steps);
  const auto compress = fit_samples(input.compress);
  if (!step || !compress) return {};
  const double saved_per_token = static_cast<double>(input.n_answer) * step->linear *
                                 (input.full_bytes_per_token - input.kept_bytes_per_token);
  const double gain = saved_per_token - compress->linear;
  if (!(gain > 0)) return {BreakEven::kNever, 0};
  // Beyond this no context reaches.
  constexpr double kMostTokens = 1e12;
  const double at = compress->constant / gain;
  if (!(at < kMostTokens)) return {BreakEven::kNever, 0};
  return {BreakEven::kFrom, static_cast<std::size_t>(std::floor(at)) + 1};
}

}  // namespace precis
