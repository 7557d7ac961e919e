#include "kernels/rope.h"

#include <cmath>

#include "base/error.h"

namespace precis {

RopeTurn::RopeTurn(const Rope& rope)
    : rope_(rope), cos_(rope.n_pairs(), 1.0f), sin_(rope.n_pairs(), 0.0f) {
  PRECIS_CHECK(rope.n_rot == 2 * rope.n_pairs(), rope.n_rot, " channels, ", rope.n_pairs(),
               " frequencies");
}

void RopeTurn::set_delta(std::int64_t delta) {
  for (std::size_t i = 0; i < rope_.n_pairs(); ++i) {
    const double angle = static_cast<double>(delta) * rope_.frequencies[i];
    cos_[i] = static_cast<float>(std::cos(angle));
    sin_[i] = static_cast<float>(std::sin(angle));
  }
}

void RopeTurn::apply(float* row) const {
  for (std::size_t i = 0; i < rope_.n_pairs(); ++i) {
    float& a = row[rope_.first_channel(i)];
    float& b = row[rope_.second_channel(i)];
    const float turned = a * cos_[i] - b * sin_[i];
    b = a * sin_[i] + b * cos_[i];
    a = turned;
  }
}

}  // namespace precis
