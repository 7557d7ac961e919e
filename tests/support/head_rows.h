// The entries of one head of a frozen layer, unpacked to f16, as the oracles read them.
#pragma once

#include <cstddef>
#include <vector>

#include "cache/kv_rows.h"

namespace precis::test {

struct HeadRows {
  HeadRows(const FrozenLayer& layer, std::size_t head) {
    const std::size_t size = layer.n_entries(head) * layer.shape().head_dim;
    std::vector<float> k(size), v(size);
    n = layer.n_entries(head);
    if (n > 0) layer.rows(head).unpack(0, n, k.data(), v.data());
    for (const float x : k) keys.push_back(to_half(x));
    for (const float x : v) values.push_back(to_half(x));
    bias = layer.head(head).bias;
  }
  EntryView view() const { return {keys.data(), values.data(), bias, n}; }

  std::size_t n = 0;
  std::vector<Half> keys;    // [n, head_dim]
  std::vector<Half> values;  // [n, head_dim]
  const float* bias = nullptr;
};

}  // namespace precis::test
