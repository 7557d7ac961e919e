#include "eval/divergence.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace precis {
namespace {

double log_sum_exp(std::span<const float> logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float x : logits) sum += std::exp(static_cast<double>(x) - top);
  return top + std::log(sum);
}

}  // namespace

Divergence compare_logits(std::span<const float> reference, std::span<const float> other) {
  PRECIS_CHECK(reference.size() == other.size() && !reference.empty(), reference.size(), " vs ",
               other.size());
  const double norm_r = log_sum_exp(reference);
  const double norm_o = log_sum_exp(other);
  double kl = 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double log_r = static_cast<double>(reference[i]) - norm_r;
    const double log_o = static_cast<double>(other[i]) - norm_o;
    const double p = std::exp(log_r);
    if (p > 0) kl += p * (log_r - log_o);
  }
  const auto top = [](std::span<const float> x) {
    return std::max_element(x.begin(), x.end()) - x.begin();
  };
  // Rounding may leave a tiny negative sum for equal distributions.
  return {std::max(kl, 0.0), top(reference) == top(other)};
}

double log_probability(std::span<const float> logits, std::size_t token) {
  PRECIS_CHECK(token < logits.size(), token);
  return static_cast<double>(logits[token]) - log_sum_exp(logits);
}

}  // namespace precis
