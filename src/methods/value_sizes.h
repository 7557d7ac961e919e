// Sizes of the values of one KV head, as scores weigh attention with them.
#pragma once

#include <cstddef>
#include <vector>

#include "compress/stage.h"

namespace precis {

// ||v_j||_1, [n_tokens].
std::vector<float> value_l1_norms(const HeadView& head);

// The same of one row; head_dim is at most 512.
float value_l1_norm(const Half* value, std::size_t head_dim);

// The values as f32, [n_tokens, head_dim], for scores that read them once per query.
std::vector<float> value_rows(const HeadView& head);

// ||v_j - point||_2^2 and v_j . point of one row of value_rows().
struct ValueToPoint {
  double squared_distance = 0;
  double product = 0;
};
ValueToPoint compare_value(const float* value, const float* point, std::size_t width);

}  // namespace precis
