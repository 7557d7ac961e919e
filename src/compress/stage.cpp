#include "compress/stage.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/rows.h"

namespace precis {

std::span<const float> HeadView::window_mass(std::size_t window) {
  const std::size_t n_window = std::min(window, n_tokens);
  PRECIS_CHECK(n_queries >= n_window, n_queries, " captured, window ", n_window);
  for (const auto& [size, mass] : window_mass_)
    if (size == n_window) return mass;

  // A few tokens per call: small enough that a cancelled request ends soon, and that the gathered
  // queries stay in the first-level cache.
  constexpr std::size_t kStep = 8;
  std::vector<float> rows(kStep * group * head_dim);
  Visible visible[kStep];
  std::vector<float> mass(n_tokens, 0.0f);
  const std::size_t window_begin = n_tokens - n_window;
  for (std::size_t first = 0; first < n_window; first += kStep) {
    throw_if_cancelled(cancel);
    const std::size_t n_step = std::min(kStep, n_window - first);
    for (std::size_t t = 0; t < n_step; ++t) {
      const std::size_t token = window_begin + first + t;
      for (std::size_t g = 0; g < group; ++g)
        std::copy_n(query(g, token), head_dim, rows.data() + (t * group + g) * head_dim);
      visible[t] = {0, static_cast<std::uint32_t>(token + 1)};
    }
    const QueryView view{rows.data(), n_step, group, head_dim, group * head_dim};
    add_attention_mass(view, entries, rule, visible, mass.data(), scratch_);
  }
  window_mass_.emplace_back(n_window, std::move(mass));
  return window_mass_.back().second;
}

std::span<const float> HeadView::value_norms() {
  if (value_norms_.empty()) {
    value_norms_.resize(n_tokens);
    row_norms(entries.values, n_tokens, head_dim, value_norms_.data());
  }
  return value_norms_;
}

}  // namespace precis
