#include "methods/attention_rows.h"

#include <algorithm>

#include "base/error.h"

namespace precis {

std::size_t observed_window(int window, std::size_t n_tokens) {
  return window == 0 ? n_tokens : std::min(static_cast<std::size_t>(window), n_tokens);
}

void visit_attention_rows(HeadView& head, std::size_t window,
                          const std::function<void(const AttentionRow&)>& visit) {
  const std::size_t n_window = std::min(window, head.n_tokens);
  PRECIS_CHECK(head.n_queries >= n_window, head.n_queries, " captured, window ", n_window);
  std::vector<float> attention(head.n_tokens);
  AttentionRow row;
  for (row.token = head.n_tokens - n_window; row.token < head.n_tokens; ++row.token) {
    throw_if_cancelled(head.cancel);
    for (row.member = 0; row.member < head.group; ++row.member, ++row.number) {
      // The sum over a single row is the row.
      std::fill(attention.begin(), attention.end(), 0.0f);
      const QueryView query{head.query(row.member, row.token), 1, 1, head.head_dim, head.head_dim};
      const Visible visible{0, static_cast<std::uint32_t>(row.token + 1)};
      row.log_sum_exp = head.query_log_sum_exp(row.member, row.token);
      add_attention_mass(query, head.entries, head.rule, &visible, &row.log_sum_exp,
                         attention.data(), head.scratch());
      // Logits of 1e9 and more are further from their rounded log-sum-exp than an exponential
      // bears; attention stays a probability all the same.
      for (std::size_t t = 0; t <= row.token; ++t)
        attention[t] = std::clamp(attention[t], 0.0f, 1.0f);
      row.attention = std::span<const float>(attention).first(row.token + 1);
      visit(row);
    }
  }
}

std::vector<float> attention_outputs(HeadView& head, std::size_t window) {
  const std::size_t n_window = std::min(window, head.n_tokens);
  PRECIS_CHECK(head.n_queries >= n_window, head.n_queries, " captured, window ", n_window);
  const std::size_t width = head.head_dim;
  const std::size_t n_rows = n_window * head.group;
  std::vector<float> rows(n_rows * width);
  std::vector<Visible> visible(n_window);
  for (std::size_t t = 0; t < n_window; ++t) {
    const std::size_t token = head.n_tokens - n_window + t;
    visible[t] = {0, static_cast<std::uint32_t>(token + 1)};
    for (std::size_t g = 0; g < head.group; ++g)
      std::copy_n(head.query(g, token), width, rows.data() + (t * head.group + g) * width);
  }
  const QueryView queries{rows.data(), n_window, head.group, width, head.group * width};
  std::vector<float> max(n_rows), sum(n_rows), out(n_rows * width);
  const StateView state{max.data(), sum.data(), out.data()};
  reset_states(state, n_rows, width);
  attend(queries, head.entries, head.rule, visible.data(), state, head.scratch());
  std::vector<float> outputs(n_rows * width);
  finish_states(state, n_window, head.group, width, head.group * width, outputs.data(), nullptr);
  return outputs;
}

}  // namespace precis
