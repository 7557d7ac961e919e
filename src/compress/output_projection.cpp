#include "compress/output_projection.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "kernels/float_rows.h"
#include "kernels/gram.h"
#include "kernels/rows.h"

namespace precis {
namespace {

// A tile of outputs is 128 KiB, and values are read once for each block of rows.
constexpr std::size_t kTokens = 128;
constexpr std::size_t kRows = 256;

}  // namespace

void ExpandedProjection::norms(HeadView& head, std::span<float> norms) const {
  const std::size_t d = head.head_dim;
  const std::size_t n = head.n_tokens;
  const std::size_t width = head.group * d;
  PRECIS_CHECK(norms.size() == head.group * n, norms.size(), " for ", head.group, " * ", n);
  std::vector<float> weights(n_outputs() * width);
  expand(head.head * width, width, weights.data());
  std::vector<float> values(std::min(kTokens, n) * d);
  std::vector<float> outputs(std::min(kTokens, n) * kRows);
  std::vector<double> sums(std::min(kTokens, n));
  for (std::size_t first = 0; first < n; first += kTokens) {
    throw_if_cancelled(head.cancel);
    const std::size_t n_block = std::min(kTokens, n - first);
    convert_rows(head.entries.values + first * d, values.data(), n_block * d);
    for (std::size_t g = 0; g < head.group; ++g) {
      const FloatRows own{weights.data() + g * d, d, width};
      const MatrixSource source = matrix_of(own);
      std::fill(sums.begin(), sums.end(), 0.0);
      for (std::size_t row = 0; row < n_outputs(); row += kRows) {
        const std::size_t n_rows = std::min(kRows, n_outputs() - row);
        multiply_transposed(values.data(), n_block, source, row, row + n_rows, outputs.data(),
                            n_rows, head.scratch());
        for (std::size_t t = 0; t < n_block; ++t)
          for (std::size_t r = 0; r < n_rows; ++r)
            sums[t] += static_cast<double>(std::abs(outputs[t * n_rows + r]));
      }
      for (std::size_t t = 0; t < n_block; ++t)
        norms[g * n + first + t] = static_cast<float>(sums[t]);
    }
  }
}

void ExpandedProjection::factors(HeadView& head, std::span<float> factors) const {
  const std::size_t d = head.head_dim;
  const std::size_t width = head.group * d;
  PRECIS_CHECK(factors.size() == head.group * d * d, factors.size(), " for ", head.group, " * ", d,
               "^2");
  std::vector<float> weights(n_outputs() * width);
  expand(head.head * width, width, weights.data());
  for (std::size_t g = 0; g < head.group; ++g) {
    throw_if_cancelled(head.cancel);
    std::vector<double> gram(d * d, 0.0);
    add_gram(weights.data() + g * d, n_outputs(), width, d, gram.data(), head.scratch());
    factorise_gram(gram, d, factors.data() + g * d * d);
  }
}

}  // namespace precis
