#include "methods/value_sizes.h"

#include <cmath>
#include <iterator>

#include "base/error.h"
#include "kernels/rows.h"

namespace precis {

std::vector<float> value_l1_norms(const HeadView& head) {
  std::vector<float> norms(head.n_tokens);
  for (std::size_t t = 0; t < head.n_tokens; ++t)
    norms[t] = value_l1_norm(head.entries.values + t * head.head_dim, head.head_dim);
  return norms;
}

float value_l1_norm(const Half* value, std::size_t head_dim) {
  float row[512];
  PRECIS_CHECK(head_dim <= std::size(row), head_dim);
  convert_rows(value, row, head_dim);
  float sum = 0.0f;
  for (std::size_t c = 0; c < head_dim; ++c) sum += std::abs(row[c]);
  return sum;
}

std::vector<float> value_rows(const HeadView& head) {
  std::vector<float> rows(head.n_tokens * head.head_dim);
  convert_rows(head.entries.values, rows.data(), rows.size());
  return rows;
}

ValueToPoint compare_value(const float* value, const float* point, std::size_t width) {
  // Widths are multiples of 8 (QueryView): eight sums, so that the loop can be vectorised.
  constexpr std::size_t kLanes = 8;
  float distance[kLanes] = {};
  float product[kLanes] = {};
  for (std::size_t c = 0; c < width; c += kLanes)
    for (std::size_t i = 0; i < kLanes; ++i) {
      const float difference = value[c + i] - point[c + i];
      distance[i] += difference * difference;
      product[i] += value[c + i] * point[c + i];
    }
  ValueToPoint out;
  for (std::size_t i = 0; i < kLanes; ++i) {
    out.squared_distance += static_cast<double>(distance[i]);
    out.product += static_cast<double>(product[i]);
  }
  return out;
}

}  // namespace precis
