#include "compress/repetition.h"

#include <algorithm>
#include <vector>

namespace precis {

void raise_repetition_peaks(const Repetition& repetition, std::size_t begin, std::size_t n,
                            float* log_peaks, Scratch& scratch) {
  constexpr std::size_t kSinks = 4;
  const Repetition& r = repetition;
  const std::size_t d = r.head_dim;
  const std::size_t n_rows = n * r.group;
  std::vector<float> rows(n_rows * d);
  for (std::size_t t = 0; t < n; ++t)
    for (std::size_t g = 0; g < r.group; ++g)
      std::copy_n(r.queries + (g * r.n_tokens + begin + t) * d, d,
                  rows.data() + (t * r.group + g) * d);
  const QueryView queries{rows.data(), n, r.group, d, r.group * d};
  std::vector<float> max(n_rows), sum(n_rows), out(n_rows * d), log_sum_exp(n_rows);
  const StateView state{max.data(), sum.data(), out.data()};
  reset_states(state, n_rows, d);
  const auto part = [&](std::size_t first, std::size_t last) {
    return EntryView{r.keys + first * d, nullptr, nullptr, last - first};
  };
  std::vector<Visible> visible(n);
  const auto add = [&](const EntryView& entries, bool causal) {
    for (std::size_t t = 0; t < n; ++t)
      visible[t] = {0, static_cast<std::uint32_t>(causal ? begin + t + 1 : entries.n)};
    attend(queries, entries, r.rule, visible.data(), state, scratch);
  };
  const EntryView chunk = part(r.first, r.last);
  add(part(0, std::min(kSinks, r.first)), false);
  add(chunk, false);
  add(part(r.n_prompt, r.n_prompt + r.n_tokens), true);
  finish_states(state, n, r.group, d, r.group * d, nullptr, log_sum_exp.data());
  raise_log_peaks(queries, chunk, r.rule, log_sum_exp.data(), log_peaks, scratch);
}

}  // namespace precis
