// LagKV: Liang, Zhang, Li, Li, "LagKV: Lag-Relative Information of the KV Cache Tells Which Tokens
// Are Important", arXiv 2504.04704. After the sinks the prompt is cut into partitions of `lag`
// tokens. Each partition but the last is scored against the next one, its reference:
//
//   x'[t, c] = (x[t, c] - min_c) / (max_c - min_c), min and max over the reference's tokens
//   s[t]     = softmax over the partition's tokens of the standard deviation of x'[t] over channels
//   score[t] = (s of the keys + s of the values) / 2
//
// The sinks, the last whole partition and what is left over are kept before anything else. Neither
// queries nor attention are read.
//
// This is the variant of kvpress with its default (order=rank): the score is replaced by its rank
// inside the partition, divided by the lag, so that all partitions keep the same share.
// order=softmax compares the scores themselves (cross_scoring of kvpress). The standard deviation
// has the divisor width - 1. Keys are those after RoPE.
//
// Deviation: among the tokens that are kept before anything else, sinks come first, then later
//   tokens before earlier ones. kvpress scores them all 1 and leaves a budget below their number to
//   chance; that happens below about 2 * lag tokens.
// Deviation: a channel that is constant over the reference gives 0 (0 / 0 in kvpress).
// Deviation: equal scores rank by position, the earlier token higher.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "compress/method.h"
#include "kernels/rows.h"

namespace precis {

void register_lagkv(Registry& registry);

namespace {

struct LagParams {
  int lag = 128;
  int sinks = 4;
  std::string order = "rank";

  template <class V>
  void fields(V&& v) {
    v("lag", lag, 1, 1 << 20, "tokens per partition");
    v("sinks", sinks, 0, 1 << 20, "first tokens, which are in no partition");
    v("order", order, {"rank", "softmax"}, "compare ranks inside of the partition, or scores");
  }
};

// Adds half of the softmax of the lag-relative deviations of rows [first, first + lag) to scores.
void add_lag_score(const Half* rows, std::size_t width, std::size_t first, std::size_t lag,
                   double* scores) {
  std::vector<float> row(width);
  std::vector<float> low(width, std::numeric_limits<float>::infinity());
  std::vector<float> high(width, -std::numeric_limits<float>::infinity());
  for (std::size_t t = first + lag; t < first + 2 * lag; ++t) {
    convert_rows(rows + t * width, row.data(), width);
    for (std::size_t c = 0; c < width; ++c) {
      low[c] = std::min(low[c], row[c]);
      high[c] = std::max(high[c], row[c]);
    }
  }
  std::vector<double> deviations(lag);
  std::vector<double> scaled(width);
  for (std::size_t i = 0; i < lag; ++i) {
    convert_rows(rows + (first + i) * width, row.data(), width);
    double mean = 0;
    for (std::size_t c = 0; c < width; ++c) {
      const double range = static_cast<double>(high[c]) - static_cast<double>(low[c]);
      const double above = static_cast<double>(row[c]) - static_cast<double>(low[c]);
      scaled[c] = range > 0 ? above / range : 0;
      mean += scaled[c] / static_cast<double>(width);
    }
    double squares = 0;
    for (const double x : scaled) squares += (x - mean) * (x - mean);
    deviations[i] = std::sqrt(squares / static_cast<double>(width - 1));
  }
  const double largest = *std::max_element(deviations.begin(), deviations.end());
  double sum = 0;
  for (double& deviation : deviations) sum += deviation = std::exp(deviation - largest);
  for (std::size_t i = 0; i < lag; ++i) scores[i] += deviations[i] / sum / 2;
}

// (number of tokens that score lower, or equal and later) / n
void replace_by_ranks(std::vector<double>& scores) {
  std::vector<std::size_t> order(scores.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return scores[a] != scores[b] ? scores[a] < scores[b] : a > b;
  });
  for (std::size_t rank = 0; rank < order.size(); ++rank)
    scores[order[rank]] = static_cast<double>(rank) / static_cast<double>(order.size());
}

class LagScorer final : public Scorer {
 public:
  explicit LagScorer(const LagParams& params) : params_(params) {}

  void score(HeadView& head, std::span<float> scores) const override {
    const auto lag = static_cast<std::size_t>(params_.lag);
    const std::size_t n = head.n_tokens;
    const std::size_t sinks = std::min(static_cast<std::size_t>(params_.sinks), n);
    const std::size_t n_partitions = (n - sinks) / lag;
    const std::size_t tail = n_partitions < 2 ? sinks : sinks + (n_partitions - 1) * lag;
    for (std::size_t t = 0; t < sinks; ++t) scores[t] = 2.0f;
    // In (1, 2): above every partition's score.
    for (std::size_t t = tail; t < n; ++t)
      scores[t] = 1.0f + static_cast<float>(t - tail + 1) / static_cast<float>(n - tail + 1);
    std::vector<double> partition(lag);
    for (std::size_t first = sinks; first < tail; first += lag) {
      throw_if_cancelled(head.cancel);
      std::fill(partition.begin(), partition.end(), 0.0);
      add_lag_score(head.entries.keys, head.head_dim, first, lag, partition.data());
      add_lag_score(head.entries.values, head.head_dim, first, lag, partition.data());
      if (params_.order == "rank") replace_by_ranks(partition);
      for (std::size_t i = 0; i < lag; ++i) scores[first + i] = static_cast<float>(partition[i]);
    }
  }

 private:
  LagParams params_;
};

}  // namespace

void register_lagkv(Registry& registry) {
  const std::string paper = "arXiv 2504.04704";
  registry.add_stage<LagScorer, LagParams>(
      StageKind::kScore, "lagkv", paper,
      "spread of keys and values relative to the range of the next tokens'");
  registry.add_preset({"lagkv", "score=lagkv select=head(recent=16,sinks=4)", paper,
                       "LagKV: the sinks, the last partitions, an equal share of the others"});
}

}  // namespace precis
