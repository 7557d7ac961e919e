#include "kernels/gram.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/float_rows.h"

namespace precis {
namespace {

constexpr std::size_t kBlockRows = kMatmulStep;

}  // namespace

void add_gram(const float* rows, std::size_t n, std::size_t stride, std::size_t width, double* gram,
              Scratch& scratch) {
  std::vector<float> channels(width * std::min(n, kBlockRows));
  std::vector<float> sums(width * width);
  for (std::size_t first = 0; first < n; first += kBlockRows) {
    const std::size_t n_block = std::min(kBlockRows, n - first);
    for (std::size_t r = 0; r < n_block; ++r)
      for (std::size_t c = 0; c < width; ++c)
        channels[c * n_block + r] = rows[(first + r) * stride + c];
    const FloatRows by_channel{channels.data(), n_block, n_block};
    multiply_transposed(channels.data(), width, matrix_of(by_channel), 0, width, sums.data(), width,
                        scratch);
    for (std::size_t i = 0; i < sums.size(); ++i) gram[i] += static_cast<double>(sums[i]);
  }
}

void factorise_gram(std::vector<double>& gram, std::size_t width, float* factor) {
  constexpr double kRounding = 1e-6;  // of sums in f32
  std::vector<double> whole(width);
  for (std::size_t i = 0; i < width; ++i) whole[i] = gram[i * width + i];
  std::fill_n(factor, width * width, 0.0f);
  for (std::size_t i = 0; i < width; ++i) {
    const double pivot = gram[i * width + i];
    if (pivot <= kRounding * whole[i]) continue;
    const double root = std::sqrt(pivot);
    double* row = gram.data() + i * width;
    for (std::size_t c = i; c < width; ++c) {
      row[c] /= root;
      factor[i * width + c] = static_cast<float>(row[c]);
    }
    for (std::size_t r = i + 1; r < width; ++r)
      for (std::size_t c = r; c < width; ++c) gram[r * width + c] -= row[r] * row[c];
  }
}

}  // namespace precis
