// W_O of a layer, as far as methods ask for it: how large a value is, and how far two values lie
// apart, where the layer adds them to the hidden state.
//
// Query head g of KV head h has its own head_dim columns of W_O. What they make of the values
// depends on the layer's weights and values alone, so it is computed when the layer is condensed:
// the prefill keeps nothing for it, and it is the same bit for bit for prompts in parts, for forks
// and for layers that are condensed later.
#pragma once

#include <cstddef>
#include <span>

#include "compress/stage.h"

namespace precis {

class OutputProjection {
 public:
  virtual ~OutputProjection() = default;
  // norms[g, j] = ||W_O^g v_j||_1, [group, n_tokens]. Throws Error(kCancelled).
  virtual void norms(HeadView& head, std::span<float> norms) const = 0;
  // factors[g] = R with ||R x||_2 = ||W_O^g x||_2 for every x, [group, head_dim, head_dim], upper
  // triangular. A product with R costs head_dim^2 where W_O costs the width of the model more.
  virtual void factors(HeadView& head, std::span<float> factors) const = 0;
};

// Computes both from the weights, which it expands to f32 for one KV head at a time: model width *
// group * head_dim * 4 bytes for each head that is worked on, freed at the end. norms() costs what
// the layer's own product with W_O does.
class ExpandedProjection : public OutputProjection {
 public:
  void norms(HeadView& head, std::span<float> norms) const final;
  void factors(HeadView& head, std::span<float> factors) const final;

 private:
  virtual std::size_t n_outputs() const = 0;  // width of the model
  // Columns [first, first + n) of W_O, rows [n_outputs, n]; query head q has those from q *
  // head_dim on. Thread-safe.
  virtual void expand(std::size_t first, std::size_t n, float* rows) const = 0;
};

}  // namespace precis
