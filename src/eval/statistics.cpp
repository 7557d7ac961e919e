#include "eval/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace precis {
namespace {

using Basis = double (*)(double);

double one(double) { return 1.0; }
double same(double x) { return x; }
double square(double x) { return x * x; }

// Coefficients of a * f(x) + b * g(x) that minimise the sum of ((y - fitted) / y)^2, none below 0.
std::optional<std::pair<double, double>> fit_two(std::span<const double> x,
                                                 std::span<const double> y, Basis f, Basis g) {
  PRECIS_CHECK(x.size() == y.size(), x.size(), " vs ", y.size());
  if (std::any_of(y.begin(), y.end(), [](double v) { return !(v > 0); })) return {};
  if (x.size() < 2 || std::all_of(x.begin(), x.end(), [&](double v) { return v == x[0]; }))
    return {};
  double ff = 0;
  double fg = 0;
  double gg = 0;
  double f1 = 0;
  double g1 = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double a = f(x[i]) / y[i];
    const double b = g(x[i]) / y[i];
    ff += a * a;
    fg += a * b;
    gg += b * b;
    f1 += a;
    g1 += b;
  }
  const double determinant = ff * gg - fg * fg;
  if (!(determinant > 0)) return {};
  const double a = (f1 * gg - g1 * fg) / determinant;
  const double b = (g1 * ff - f1 * fg) / determinant;
  if (a < 0) return std::pair{0.0, g1 / gg};
  if (b < 0) return std::pair{f1 / ff, 0.0};
  return std::pair{a, b};
}

void add_residual(Fit& fit, std::span<const double> x, std::span<const double> y) {
  for (std::size_t i = 0; i < x.size(); ++i)
    fit.worst_residual = std::max(fit.worst_residual, std::abs(y[i] - fit.at(x[i])) / y[i]);
}

}  // namespace

double mean_of(std::span<const double> values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double stddev_of(std::span<const double> values) {
  if (values.size() < 2) return 0;
  const double mean = mean_of(values);
  double sum = 0;
  for (const double v : values) sum += (v - mean) * (v - mean);
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

double median_of(std::span<const double> values) {
  if (values.empty()) return 0;
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const std::size_t half = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

std::vector<double> paired_ratios(std::span<const double> numerators,
                                  std::span<const double> denominators) {
  PRECIS_CHECK(numerators.size() == denominators.size(), numerators.size(), " vs ",
               denominators.size());
  std::vector<double> out;
  for (std::size_t i = 0; i < numerators.size(); ++i) {
    PRECIS_CHECK(denominators[i] > 0, denominators[i]);
    out.push_back(numerators[i] / denominators[i]);
  }
  return out;
}

std::optional<Fit> fit_line(std::span<const double> x, std::span<const double> y) {
  const auto found = fit_two(x, y, one, same);
  if (!found) return {};
  Fit fit{found->first, found->second, 0, 0};
  add_residual(fit, x, y);
  return fit;
}

std::optional<Fit> fit_quadratic(std::span<const double> x, std::span<const double> y) {
  const auto found = fit_two(x, y, same, square);
  if (!found) return {};
  Fit fit{0, found->first, found->second, 0};
  add_residual(fit, x, y);
  return fit;
}

}  // namespace precis
