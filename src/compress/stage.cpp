#include "compress/stage.h"

#include <algorithm>

#include "base/error.h"
#include "compress/output_projection.h"
#include "kernels/rows.h"

namespace precis {

bool ObservedQueries::serves(const Observation& wanted, std::size_t n_prompt) const {
  if (n_tokens < std::min(wanted.n_queries, n_prompt)) return false;
  if (wanted.repeat_chunk != 0 && repeat_chunk != wanted.repeat_chunk) return false;
  if (wanted.hidden_cosine && hidden_cosines.size() != n_prompt) return false;
  return wanted.block == 0 || n_tokens == n_prompt || block == std::min(wanted.block, n_prompt);
}

namespace {

// Turns the queries of tokens [first, first + n), [n, group, head_dim], to their places.
void turn_queries(const HeadView& head, std::size_t first, std::size_t n, float* rows) {
  RopeTurn turn(*head.rope);
  for (std::size_t t = 0; t < n; ++t) {
    turn.set_delta(head.places[first + t] - static_cast<std::int64_t>(first + t));
    for (std::size_t g = 0; g < head.group; ++g, rows += head.head_dim) turn.apply(rows);
  }
}

// The log-sum-exp of each row's logits.
void sum_logits(const QueryView& queries, EntryView entries, const LogitRule& rule,
                const Visible* visible, std::vector<float>& log_sum_exp, Scratch& scratch) {
  const std::size_t n = queries.n_rows();
  std::vector<float> max(n), sum(n), out(n * queries.head_dim);
  const StateView state{max.data(), sum.data(), out.data()};
  reset_states(state, n, queries.head_dim);
  entries.values = nullptr;
  attend(queries, entries, rule, visible, state, scratch);
  finish_states(state, queries.n_tokens, queries.group, queries.head_dim,
                queries.group * queries.head_dim, nullptr, log_sum_exp.data());
}

}  // namespace

void HeadView::turn_keys() {
  if (!turned_keys_.empty()) return;
  turned_keys_.resize(n_tokens * head_dim);
  std::vector<float> row(head_dim);
  RopeTurn turn(*rope);
  for (std::size_t t = 0; t < n_tokens; ++t) {
    if (t % 1024 == 0) throw_if_cancelled(cancel);
    turn.set_delta(places[t] - static_cast<std::int64_t>(t));
    convert_rows(entries.keys + t * head_dim, row.data(), head_dim);
    turn.apply(row.data());
    convert_rows(row.data(), turned_keys_.data() + t * head_dim, head_dim);
  }
}

void HeadView::gather_queries(std::size_t first, std::size_t n, float* rows,
                              float* row_sums) const {
  for (std::size_t t = 0; t < n; ++t)
    for (std::size_t g = 0; g < group; ++g, rows += head_dim) {
      std::copy_n(query(g, first + t), head_dim, rows);
      *row_sums++ = query_log_sum_exp(g, first + t);
    }
}

std::span<const float> HeadView::window_mass(std::size_t window) {
  const std::size_t n_window = std::min(window, n_tokens);
  PRECIS_CHECK(n_queries >= n_window, n_queries, " captured, window ", n_window);
  for (const auto& [size, mass] : window_mass_)
    if (size == n_window) return mass;

  // Tokens of a call share the conversion of the keys, but a cancelled request must end soon: a
  // call takes at most 3e8 multiply-adds, some 30 ms.
  constexpr std::size_t kMost = 32;
  const std::size_t per_token = n_tokens * group * head_dim;
  const std::size_t step = std::clamp<std::size_t>(300'000'000 / per_token, 1, kMost);
  std::vector<float> rows(step * group * head_dim);
  std::vector<float> row_sums(step * group);
  Visible visible[kMost];
  std::vector<float> mass(n_tokens, 0.0f);
  const std::size_t window_begin = n_tokens - n_window;
  const bool turned = places != nullptr && rope != nullptr;
  EntryView seen = entries;
  if (turned) {
    turn_keys();
    seen.keys = turned_keys_.data();
  }
  for (std::size_t first = 0; first < n_window; first += step) {
    throw_if_cancelled(cancel);
    const std::size_t n_step = std::min(step, n_window - first);
    gather_queries(window_begin + first, n_step, rows.data(), row_sums.data());
    for (std::size_t t = 0; t < n_step; ++t)
      visible[t] = {0, static_cast<std::uint32_t>(window_begin + first + t + 1)};
    const QueryView view{rows.data(), n_step, group, head_dim, group * head_dim};
    if (turned) {
      turn_queries(*this, window_begin + first, n_step, rows.data());
      sum_logits(view, seen, rule, visible, row_sums, scratch_);
    }
    add_attention_mass(view, seen, rule, visible, row_sums.data(), mass.data(), scratch_);
  }
  window_mass_.emplace_back(n_window, std::move(mass));
  return window_mass_.back().second;
}

std::span<const float> HeadView::block_attention(std::size_t block) {
  const std::size_t width = std::min(block, n_tokens);
  if (observed_block == width) return {observed_block_attention, n_tokens * width};
  if (block_attention_.size() == n_tokens * width) return block_attention_;
  PRECIS_CHECK(n_queries == n_tokens, n_queries, " captured of ", n_tokens, ", observed block ",
               observed_block, ", wanted ", width);
  std::vector<float> result(n_tokens * width);
  std::vector<float> rows(width * group * head_dim);
  std::vector<float> row_sums(width * group);
  for (std::size_t first = 0; first < n_tokens; first += width) {
    throw_if_cancelled(cancel);
    const std::size_t n = std::min(width, n_tokens - first);
    gather_queries(first, n, rows.data(), row_sums.data());
    const QueryView view{rows.data(), n, group, head_dim, group * head_dim};
    log_block_attention(view, entries.keys + first * head_dim, 0, rule, row_sums.data(), width,
                        result.data() + first * width, scratch_);
  }
  block_attention_ = std::move(result);
  return block_attention_;
}

std::span<const float> HeadView::value_norms() {
  if (value_norms_.empty()) {
    value_norms_.resize(n_tokens);
    row_norms(entries.values, n_tokens, head_dim, value_norms_.data());
  }
  return value_norms_;
}

std::span<const float> HeadView::output_norms() {
  PRECIS_CHECK(output != nullptr, "layer ", layer, " was given without its output projection");
  if (output_norms_.empty()) {
    std::vector<float> norms(group * n_tokens);
    output->norms(*this, norms);
    output_norms_ = std::move(norms);
  }
  return output_norms_;
}

std::span<const float> HeadView::output_factors() {
  PRECIS_CHECK(output != nullptr, "layer ", layer, " was given without its output projection");
  if (output_factors_.empty()) {
    std::vector<float> factors(group * head_dim * head_dim);
    output->factors(*this, factors);
    output_factors_ = std::move(factors);
  }
  return output_factors_;
}

std::vector<double> LayerBudgets::entries(std::size_t n_layers, std::size_t entries_per_head,
                                          const Protection&) const {
  return std::vector<double>(n_layers, static_cast<double>(entries_per_head));
}

double LayerBudgets::weigh(const LayerTable&) const { return 0; }

std::vector<double> LayerBudgets::divide(std::span<const LayerTable> done, std::span<const double>,
                                         std::size_t n_entries) const {
  return std::vector<double>(done.size(),
                             static_cast<double>(n_entries) / static_cast<double>(done.size()));
}

}  // namespace precis
