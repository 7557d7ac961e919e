// Queries of the prompt's end, some to fit a residual section to and others to judge it by (ResKV,
// arXiv 2607.29591, Eq. 18-19), and what they see of it.
//
// All is causal: a query at token t sees main entries up to t, and of a residual entry as much as
// it holds of tokens up to t. An entry with c members, v of them at t or before, has its bias
// lowered by log(c / v) for that query, and is hidden if v is 0.
//
// Queries that come after the prompt find all tokens since then exact, in the tail. To be like
// them, queries of the window see all its tokens up to their own exactly, kept or not, and nothing
// of what residual entries hold of it. `horizon` is the first of these tokens; n_tokens: there are
// none, and only kept tokens are seen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "compress/residual.h"
#include "methods/key_clusters.h"

namespace precis {

// Every fourth token of the window is held out: 96 and 32 of 128.
struct QueryTokens {
  std::vector<std::uint32_t> fit;
  std::vector<std::uint32_t> held;
};
QueryTokens deal_queries(std::size_t n_tokens, std::size_t window);

// A residual section in the making.
struct ResidualDraft {
  KeyClusters clusters;
  std::vector<float> keys;    // [clusters, head_dim], finite in f16
  std::vector<float> values;  // the same
  std::vector<float> bias;    // [clusters]
};

// Rows of captured queries, [tokens, group, head_dim], with what a residual section gives them.
class QueryRows {
 public:
  QueryRows(const HeadView& head, std::span<const std::uint32_t> tokens, std::size_t horizon);

  std::size_t n_rows() const { return tokens_.size() * group_; }
  const float* data() const { return rows_.data(); }
  QueryView view() const {
    return {rows_.data(), tokens_.size(), group_, head_dim_, group_ * head_dim_};
  }
  std::span<const std::uint32_t> tokens() const { return tokens_; }
  const std::vector<float>& log_sum_exp() const { return log_sum_exp_; }  // [n_rows]
  // What each query may see of rows that stand in order at `tokens`.
  std::vector<Visible> visible(std::span<const std::uint32_t> tokens) const;

  // Attention that all tokens of the prompt get from these queries, [n_tokens].
  std::vector<float> mass(HeadView& head) const;
  // The same of residual entries, as a part of the same softmax: not of their own.
  std::vector<float> mass_of(HeadView& head, const ResidualDraft& draft) const;
  // Adds the residual entries to partial states of these rows.
  void attend_residual(HeadView& head, const ResidualDraft& draft, const StateView& state) const;

 private:
  // Calls visit(cluster, row, logit without bias and share, share) for the entries that not all
  // queries see whole; returns how many come before those.
  template <class Visit>
  std::size_t visit_open(const HeadView& head, const ResidualDraft& draft,
                         const Visit& visit) const;

  std::vector<std::uint32_t> tokens_;
  std::size_t horizon_;
  std::size_t group_;
  std::size_t head_dim_;
  std::vector<float> rows_;
  std::vector<float> log_sum_exp_;
};

// Judges splits of one head against its full cache.
class HeldOutJudge {
 public:
  HeldOutJudge(HeadView& head, std::span<const std::uint32_t> tokens, std::size_t horizon);

  // Everything of a trial but the entries' rows: errors, masses, and of `gates` the one with the
  // least error, the first of equals. draft: nullptr without a residual section.
  ResidualTrial judge(HeadView& head, const HeadSplit& split, const ResidualDraft* draft,
                      std::span<const SharpnessGate> gates) const;

 private:
  QueryRows rows_;
  std::size_t horizon_;
  std::vector<float> outputs_;  // of the full cache, [tokens, group, head_dim]
};

}  // namespace precis
