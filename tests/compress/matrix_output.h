// An output projection W_O from a matrix of normal numbers, and what it should give as plain loops
// in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "compress/output_projection.h"

namespace precis::test {

class MatrixOutput final : public ExpandedProjection {
 public:
  // n_inputs: query heads * head_dim.
  MatrixOutput(std::size_t n_outputs, std::size_t n_inputs, std::uint32_t seed)
      : n_outputs_(n_outputs), n_inputs_(n_inputs) {
    std::mt19937 draw(seed);
    std::normal_distribution<float> normal(0.0f, 0.25f);
    for (std::size_t i = 0; i < n_outputs * n_inputs; ++i) weights.push_back(normal(draw));
  }

  // W_O^q x of query head q.
  std::vector<double> apply(std::size_t q, const std::vector<double>& x) const {
    std::vector<double> out(n_outputs_, 0.0);
    for (std::size_t r = 0; r < n_outputs_; ++r)
      for (std::size_t c = 0; c < x.size(); ++c)
        out[r] += static_cast<double>(weights[r * n_inputs_ + q * x.size() + c]) * x[c];
    return out;
  }

  std::vector<float> weights;  // [n_outputs, n_inputs]

 private:
  std::size_t n_outputs() const override { return n_outputs_; }
  void expand(std::size_t first, std::size_t n, float* rows) const override {
    for (std::size_t r = 0; r < n_outputs_; ++r)
      std::copy_n(weights.data() + r * n_inputs_ + first, n, rows + r * n);
  }

  std::size_t n_outputs_;
  std::size_t n_inputs_;
};

}  // namespace precis::test
