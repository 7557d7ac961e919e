// CMA-ES on functions whose minima are known, and its eigenvectors by their definition.
#include "eval/cma_es.h"

#include <gtest/gtest.h>

#include <cmath>

namespace precis {
namespace {

TEST(SymmetricEigen, SatisfiesItsDefinition) {
  RandomSource random(5);
  for (const std::size_t n : {1u, 2u, 3u, 8u, 30u}) {
    std::vector<double> a(n * n);
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j <= i; ++j)
        a[i * n + j] = a[j * n + i] = static_cast<double>(random.below(2001)) / 1000 - 1;
    std::vector<double> v;
    const std::vector<double> values = symmetric_eigen(a, n, v);
    for (std::size_t k = 0; k < n; ++k)
      for (std::size_t i = 0; i < n; ++i) {
        double av = 0;
        for (std::size_t j = 0; j < n; ++j) av += a[i * n + j] * v[j * n + k];
        EXPECT_NEAR(av, values[k] * v[i * n + k], 1e-12);
        double dot = 0;
        for (std::size_t j = 0; j < n; ++j) dot += v[j * n + i] * v[j * n + k];
        EXPECT_NEAR(dot, i == k ? 1 : 0, 1e-12);
      }
  }
}

template <class F>
double minimum(const F& f, std::vector<double> start, std::size_t generations, std::uint64_t seed) {
  CmaEs search(std::move(start), 0.5, 0, seed);
  for (std::size_t g = 0; g < generations; ++g) {
    std::vector<double> values;
    for (const std::vector<double>& point : search.ask()) values.push_back(f(point));
    search.tell(values);
  }
  return f(search.mean());
}

TEST(CmaEs, FindsMinima) {
  const auto sphere = [](const std::vector<double>& x) {
    double sum = 0;
    for (const double xi : x) sum += (xi - 1) * (xi - 1);
    return sum;
  };
  // Axes of 1 to 1000 in length, turned: without the covariance it would take far longer.
  const auto ellipse = [](const std::vector<double>& x) {
    double sum = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double y = x[i] + x[(i + 1) % x.size()] / 2;
      sum += std::pow(1e6, static_cast<double>(i) / static_cast<double>(x.size() - 1)) * y * y;
    }
    return sum;
  };
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    EXPECT_LT(minimum(sphere, std::vector<double>(8, -2), 150, seed), 1e-8);
    EXPECT_LT(minimum(sphere, {4}, 80, seed), 1e-8);
    EXPECT_LT(minimum(ellipse, std::vector<double>(6, 1), 500, seed), 1e-8);
  }
}

TEST(CmaEs, IsTheSameForASeedAndSurvivesAFlatFunction) {
  CmaEs a({0, 0, 0}, 0.3, 0, 9), b({0, 0, 0}, 0.3, 0, 9), c({0, 0, 0}, 0.3, 0, 10);
  EXPECT_EQ(a.population(), 7u);  // 4 + floor(3 ln 3)
  for (int g = 0; g < 200; ++g) {
    EXPECT_EQ(a.ask(), b.ask());
    EXPECT_NE(a.ask(), c.ask());
    (void)b.ask();
    const std::vector<double> values(7, 1.0);
    a.tell(values);
    b.tell(values);
    c.tell(values);
    for (const double x : a.mean()) ASSERT_TRUE(std::isfinite(x)) << g;
    ASSERT_TRUE(std::isfinite(a.sigma()) && a.sigma() > 0) << g;
  }
}

}  // namespace
}  // namespace precis
