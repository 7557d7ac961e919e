#include "compress/layer_shares.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace precis {
namespace {

// Calls move(i, step) for whole steps in proportion to `weights`, none above `room`. Returns what
// rounding and room have left of `amount`.
template <class Move>
std::size_t move_in_proportion(std::size_t amount, const std::vector<double>& weights,
                               const std::vector<std::size_t>& room, const Move& move) {
  double sum = 0;
  for (std::size_t i = 0; i < room.size(); ++i) sum += room[i] > 0 ? weights[i] : 0;
  std::size_t left = amount;
  for (std::size_t i = 0; i < room.size() && sum > 0; ++i) {
    const double part = static_cast<double>(amount) * weights[i] / sum;
    const std::size_t step = std::min({left, room[i], static_cast<std::size_t>(part)});
    move(i, step);
    left -= step;
  }
  return left;
}

}  // namespace

std::vector<std::size_t> share_out(const std::vector<double>& wanted, std::size_t total,
                                   std::span<const ShareBounds> bounds) {
  const std::size_t n = wanted.size();
  PRECIS_CHECK(bounds.size() == n, bounds.size(), " bounds of ", n, " shares");
  std::vector<std::size_t> out(n);
  std::size_t least = 0;
  std::size_t most = 0;
  for (std::size_t i = 0; i < n; ++i) {
    PRECIS_CHECK(std::isfinite(wanted[i]), "share ", i, " is ", wanted[i]);
    PRECIS_CHECK(bounds[i].least <= bounds[i].most, "share ", i, ": ", bounds[i].least, " > ",
                 bounds[i].most);
    least += bounds[i].least;
    most += bounds[i].most;
    const double bounded = std::clamp(wanted[i], static_cast<double>(bounds[i].least),
                                      static_cast<double>(bounds[i].most));
    out[i] = static_cast<std::size_t>(std::floor(bounded));
  }
  PRECIS_CHECK(least <= total && total <= most, "a sum of ", total, " of ", n, " numbers from ",
               least, " to ", most);
  while (true) {
    const std::size_t sum = std::accumulate(out.begin(), out.end(), std::size_t{0});
    if (sum == total) return out;
    const bool less = sum > total;
    std::vector<std::size_t> room(n);
    std::vector<double> weights(n);
    for (std::size_t i = 0; i < n; ++i) {
      room[i] = less ? out[i] - bounds[i].least : bounds[i].most - out[i];
      weights[i] = less ? static_cast<double>(room[i])
                        : std::clamp(wanted[i], 1.0, 1.0 + static_cast<double>(bounds[i].most));
    }
    const auto move = [&](std::size_t i, std::size_t step) {
      out[i] = less ? out[i] - step : out[i] + step;
    };
    const std::size_t amount = less ? sum - total : total - sum;
    const std::size_t left = move_in_proportion(amount, weights, room, move);
    if (left < amount) continue;
    // Less than a step for each: one by one, from where there is most room on.
    const auto widest = std::max_element(room.begin(), room.end());
    move(static_cast<std::size_t>(widest - room.begin()), 1);
  }
}

}  // namespace precis
