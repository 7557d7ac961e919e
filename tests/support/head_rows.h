// The main entries of one head of a frozen layer, or its residual ones, unpacked to f16, as the
// oracles read them.
#pragma once

#include <cstddef>
#include <vector>

#include "cache/kv_rows.h"

namespace precis::test {

struct HeadRows {
  HeadRows(const FrozenLayer& layer, std::size_t head)
      : HeadRows(layer.rows(head), layer.head(head).bias) {}
  HeadRows(const PackedList& rows, const float* row_bias) : n(rows.size()), bias(row_bias) {
    std::vector<float> k(n * rows.head_dim()), v(n * rows.head_dim());
    if (n > 0) rows.unpack(0, n, k.data(), v.data());
    for (const float x : k) keys.push_back(to_half(x));
    for (const float x : v) values.push_back(to_half(x));
  }
  static HeadRows residual(const FrozenLayer& layer, std::size_t head) {
    return {layer.residual_rows(head), layer.residual(head).bias};
  }
  EntryView view() const { return {keys.data(), values.data(), bias, n}; }

  std::size_t n = 0;
  std::vector<Half> keys;    // [n, head_dim]
  std::vector<Half> values;  // [n, head_dim]
  const float* bias = nullptr;
};

}  // namespace precis::test
