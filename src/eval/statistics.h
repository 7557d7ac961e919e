// Figures of repeated measurements, and the fits by which costs are described. All pure functions.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace precis {

// 0 for no values.
double mean_of(std::span<const double> values);
// Of a sample: divided by n - 1. 0 for fewer than two values.
double stddev_of(std::span<const double> values);
// Mean of the two middle values for an even number; 0 for none.
double median_of(std::span<const double> values);

// numerators[i] / denominators[i]: measurements of the same repetition, so that what the machine
// did meanwhile hits both. REQUIRES: equal lengths, denominators above 0.
std::vector<double> paired_ratios(std::span<const double> numerators,
                                  std::span<const double> denominators);

// Least squares of the relative errors, so that a point at 1 ms counts as much as one at 1 s.
// Coefficients below 0 have no meaning as costs: such a term is left out (0) and the other fitted
// again.
struct Fit {
  double constant = 0;
  double linear = 0;
  double quadratic = 0;
  // Largest |measured - fitted| / measured over the points.
  double worst_residual = 0;

  double at(double x) const { return constant + linear * x + quadratic * x * x; }
};

// y = constant + linear * x. Nothing for fewer than two distinct x, or a y that is not above 0.
std::optional<Fit> fit_line(std::span<const double> x, std::span<const double> y);
// y = linear * x + quadratic * x^2 (a prefill: no tokens, no time). The same conditions.
std::optional<Fit> fit_quadratic(std::span<const double> x, std::span<const double> y);

}  // namespace precis
