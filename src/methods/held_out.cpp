#include "methods/held_out.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "kernels/rows.h"
#include "methods/value_fold.h"

namespace precis {
namespace {

constexpr std::size_t kHeldOutOf = 4;

// Partial states with their memory.
struct States {
  States(std::size_t n_rows, std::size_t head_dim)
      : max(n_rows), sum(n_rows), out(n_rows * head_dim) {
    reset_states(view(), n_rows, head_dim);
  }
  StateView view() { return {max.data(), sum.data(), out.data()}; }

  std::vector<float> max;
  std::vector<float> sum;
  std::vector<float> out;
};

float capped(const LogitRule& rule, float product) {
  const float z = rule.scale * product;
  return rule.softcap == 0.0f ? z : rule.softcap * std::tanh(z / rule.softcap);
}

std::vector<Half> to_halves(std::span<const float> rows) {
  std::vector<Half> out(rows.size());
  convert_rows(rows.data(), out.data(), rows.size());
  return out;
}

// What queries see exactly, as rows of f16.
struct ExactRows {
  std::vector<std::uint32_t> tokens;
  std::vector<Half> keys;
  std::vector<Half> values;
  std::vector<float> bias;

  EntryView view() const { return {keys.data(), values.data(), bias.data(), tokens.size()}; }
};

// The main entries of a split before the horizon, and all tokens from there on.
ExactRows gather_exact(const HeadView& head, const HeadSplit& split, std::size_t horizon) {
  const std::size_t d = head.head_dim;
  ExactRows out;
  std::vector<float> row(d);
  const auto add = [&](std::vector<Half>& into, const Half* stored, const float* merged) {
    const std::size_t at = into.size();
    into.resize(at + d);
    if (merged == nullptr) {
      std::copy_n(stored, d, into.data() + at);
      return;
    }
    for (std::size_t c = 0; c < d; ++c) row[c] = std::clamp(merged[c], -kLargestHalf, kLargestHalf);
    convert_rows(row.data(), into.data() + at, d);
  };
  const std::vector<std::uint32_t>& kept = split.plan->kept;
  const HeadMerge* merge = split.merge;
  for (std::size_t i = 0; i < kept.size() && kept[i] < horizon; ++i) {
    const bool new_key =
        merge != nullptr && !merge->keys_changed.empty() && merge->keys_changed[i] != 0;
    const bool new_value = merge != nullptr && merge->changed[i] != 0;
    out.tokens.push_back(kept[i]);
    add(out.keys, head.entries.keys + kept[i] * d, new_key ? merge->keys.data() + i * d : nullptr);
    add(out.values, head.entries.values + kept[i] * d,
        new_value ? merge->values.data() + i * d : nullptr);
    out.bias.push_back(split.bias.empty() ? 0.0f : split.bias[i]);
  }
  for (std::size_t t = horizon; t < head.n_tokens; ++t) {
    out.tokens.push_back(static_cast<std::uint32_t>(t));
    add(out.keys, head.entries.keys + t * d, nullptr);
    add(out.values, head.entries.values + t * d, nullptr);
    out.bias.push_back(0.0f);
  }
  return out;
}

// exp(log-sum-exp of the state - log_sum_exp) of every row: shares of another softmax's mass.
double mass_share(const States& state, const std::vector<float>& log_sum_exp) {
  double total = 0;
  for (std::size_t r = 0; r < log_sum_exp.size(); ++r)
    if (state.sum[r] > 0.0f)
      total +=
          std::exp(static_cast<double>(state.max[r]) + std::log(static_cast<double>(state.sum[r])) -
                   static_cast<double>(log_sum_exp[r]));
  return total;
}

double squared_distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += difference * difference;
  }
  return sum;
}

double mean_factor(const SharpnessGate& gate, States& rest) {
  std::vector<float> sharpness(rest.max.size());
  row_sharpness(rest.view(), sharpness.size(), sharpness.data());
  double sum = 0;
  for (const float s : sharpness) sum += static_cast<double>(gate.factor(s));
  return sum;
}

}  // namespace

QueryTokens deal_queries(std::size_t n_tokens, std::size_t window) {
  PRECIS_CHECK(window <= n_tokens, window, " of ", n_tokens);
  QueryTokens out;
  for (std::size_t i = 0; i < window; ++i) {
    const auto token = static_cast<std::uint32_t>(n_tokens - window + i);
    (i % kHeldOutOf == kHeldOutOf - 1 ? out.held : out.fit).push_back(token);
  }
  return out;
}

QueryRows::QueryRows(const HeadView& head, std::span<const std::uint32_t> tokens,
                     std::size_t horizon)
    : tokens_(tokens.begin(), tokens.end()),
      horizon_(horizon),
      group_(head.group),
      head_dim_(head.head_dim),
      rows_(n_rows() * head_dim_),
      log_sum_exp_(n_rows()) {
  for (std::size_t t = 0; t < tokens_.size(); ++t)
    for (std::size_t g = 0; g < group_; ++g) {
      std::copy_n(head.query(g, tokens_[t]), head_dim_,
                  rows_.data() + (t * group_ + g) * head_dim_);
      log_sum_exp_[t * group_ + g] = head.query_log_sum_exp(g, tokens_[t]);
    }
}

std::vector<Visible> QueryRows::visible(std::span<const std::uint32_t> tokens) const {
  std::vector<Visible> out;
  for (const std::uint32_t own : tokens_) {
    const auto end = std::upper_bound(tokens.begin(), tokens.end(), own);
    out.push_back({0, static_cast<std::uint32_t>(end - tokens.begin())});
  }
  return out;
}

std::vector<float> QueryRows::mass(HeadView& head) const {
  std::vector<Visible> causal;
  for (const std::uint32_t token : tokens_) causal.push_back({0, token + 1});
  std::vector<float> out(head.n_tokens, 0.0f);
  add_attention_mass(view(), head.entries, head.rule, causal.data(), log_sum_exp_.data(),
                     out.data(), head.scratch());
  return out;
}

template <class Visit>
std::size_t QueryRows::visit_open(const HeadView& head, const ResidualDraft& draft,
                                  const Visit& visit) const {
  const KeyClusters& clusters = draft.clusters;
  std::size_t first = 0;
  const std::size_t all_see = std::min<std::size_t>(tokens_.front() + 1, horizon_);
  while (first < clusters.size() && clusters.members(first).back() < all_see) ++first;
  for (std::size_t j = first; j < clusters.size(); ++j) {
    const std::span<const std::uint32_t> members = clusters.members(j);
    for (std::size_t t = 0; t < tokens_.size(); ++t) {
      const std::size_t end = std::min<std::size_t>(tokens_[t] + 1, horizon_);
      const auto n_seen = std::lower_bound(members.begin(), members.end(), end) - members.begin();
      if (n_seen == 0) continue;
      const float share = static_cast<float>(n_seen) / static_cast<float>(members.size());
      for (std::size_t r = t * group_; r < (t + 1) * group_; ++r) {
        double product = 0;
        for (std::size_t c = 0; c < head_dim_; ++c)
          product += static_cast<double>(rows_[r * head_dim_ + c]) *
                     static_cast<double>(draft.keys[j * head_dim_ + c]);
        visit(j, r, capped(head.rule, static_cast<float>(product)), share);
      }
    }
  }
  return first;
}

std::vector<float> QueryRows::mass_of(HeadView& head, const ResidualDraft& draft) const {
  std::vector<float> out(draft.clusters.size(), 0.0f);
  const std::size_t n_whole =
      visit_open(head, draft, [&](std::size_t cluster, std::size_t row, float logit, float share) {
        out[cluster] += share * std::exp(logit + draft.bias[cluster] - log_sum_exp_[row]);
      });
  const std::vector<Half> keys = to_halves(std::span(draft.keys).first(n_whole * head_dim_));
  const std::vector<Visible> all(tokens_.size(), {0, static_cast<std::uint32_t>(n_whole)});
  add_attention_mass(view(), {keys.data(), nullptr, draft.bias.data(), n_whole}, head.rule,
                     all.data(), log_sum_exp_.data(), out.data(), head.scratch());
  return out;
}

void QueryRows::attend_residual(HeadView& head, const ResidualDraft& draft,
                                const StateView& state) const {
  const std::size_t n_whole =
      visit_open(head, draft, [&](std::size_t cluster, std::size_t row, float logit, float share) {
        float max = logit + draft.bias[cluster] + std::log(share);
        float sum = 1.0f;
        std::vector<float> out(
            draft.values.begin() + static_cast<std::ptrdiff_t>(cluster * head_dim_),
            draft.values.begin() + static_cast<std::ptrdiff_t>((cluster + 1) * head_dim_));
        merge_states({state.max + row, state.sum + row, state.out + row * head_dim_},
                     {&max, &sum, out.data()}, 1, head_dim_);
      });
  const std::vector<Half> keys = to_halves(std::span(draft.keys).first(n_whole * head_dim_));
  const std::vector<Half> values = to_halves(std::span(draft.values).first(n_whole * head_dim_));
  const std::vector<Visible> all(tokens_.size(), {0, static_cast<std::uint32_t>(n_whole)});
  attend(view(), EntryView{keys.data(), values.data(), draft.bias.data(), n_whole}, head.rule,
         all.data(), state, head.scratch());
}

HeldOutJudge::HeldOutJudge(HeadView& head, std::span<const std::uint32_t> tokens,
                           std::size_t horizon)
    : rows_(head, tokens, horizon), horizon_(horizon), outputs_(rows_.n_rows() * head.head_dim) {
  std::vector<Visible> causal;
  for (const std::uint32_t token : tokens) causal.push_back({0, token + 1});
  States full(rows_.n_rows(), head.head_dim);
  attend(rows_.view(), head.entries, head.rule, causal.data(), full.view(), head.scratch());
  finish_states(full.view(), tokens.size(), head.group, head.head_dim, head.group * head.head_dim,
                outputs_.data(), nullptr);
}

ResidualTrial HeldOutJudge::judge(HeadView& head, const HeadSplit& split,
                                  const ResidualDraft* draft,
                                  std::span<const SharpnessGate> gates) const {
  const std::size_t n_rows = rows_.n_rows();
  const std::size_t d = head.head_dim;
  const ExactRows seen = gather_exact(head, split, horizon_);
  const std::vector<Visible> visible = rows_.visible(seen.tokens);
  States exact(n_rows, d);
  attend(rows_.view(), seen.view(), head.rule, visible.data(), exact.view(), head.scratch());
  const auto finish = [&](States& states) {
    std::vector<float> out(n_rows * d);
    finish_states(states.view(), rows_.tokens().size(), head.group, d, head.group * d, out.data(),
                  nullptr);
    return out;
  };
  ResidualTrial out;
  out.n_rows = n_rows;
  for (const float x : outputs_) out.energy += static_cast<double>(x) * static_cast<double>(x);
  out.evicted_mass =
      std::max(0.0, static_cast<double>(n_rows) - mass_share(exact, rows_.log_sum_exp()));
  if (draft == nullptr) {
    out.error = squared_distance(finish(exact), outputs_);
    out.gate_factor = static_cast<double>(n_rows);
    return out;
  }
  States residual(n_rows, d);
  rows_.attend_residual(head, *draft, residual.view());
  out.error = std::numeric_limits<double>::infinity();
  for (const SharpnessGate& gate : gates) {
    States merged = exact;
    States gated = residual;
    gate_states(gate, merged.view(), gated.view(), n_rows, d);
    const double restored = mass_share(gated, rows_.log_sum_exp());
    const double factor = mean_factor(gate, merged);
    merge_states(merged.view(), gated.view(), n_rows, d);
    const double error = squared_distance(finish(merged), outputs_);
    if (!(error < out.error)) continue;
    out.error = error;
    out.restored_mass = restored;
    out.gate_factor = factor;
    out.entries.gate = gate;
  }
  return out;
}

}  // namespace precis
