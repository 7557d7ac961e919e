// Expected Attention: Devoto, Jeblick, Jegou, "Expected Attention: KV Cache Compression by
// Estimating Attention from Future Queries Distribution", arXiv 2510.00636, as in kvpress: queries
// to come are taken for normally distributed, with the mean and covariance that the prompt's
// queries have before RoPE, turned as they will be at the next `future` positions. With the mean
// turn R of these positions, m = R mean and S = R covariance R^T, the expected attention to key k
// is, by the moments of the exponential of a normal number,
//
//   a[k] = softmax over the keys of (scale * m.k + scale^2 / 2 * k^T S k)
//
// averaged over the query heads of a KV head; the score is (a + epsilon) * ||v||_2. The first
// `sinks` tokens have no part in it: their queries and keys are outliers. They are kept.
//
//   size=value   ||v||_2 (kvpress)
//   size=output  ||W_O v||_2 of each query head (the paper, as it was read in notes)
//   size=none    1
//
// Queries before RoPE are the observed ones turned back, exact up to rounding. Cost: all queries of
// a layer are kept in f32 while it is condensed, as for h2o; 2 * n_tokens * head_dim^2
// multiply-adds for each query head.
//
// Deviation: the logits' soft-cap is left out; no model that Precis runs has one.
// Deviation: a score of a sink is the largest of the head plus 1. kvpress takes the largest of the
//   layer, which selects the same where each head keeps its own tokens.
#include <algorithm>
#include <cmath>

#include "compress/method.h"
#include "compress/output_projection.h"
#include "kernels/float_rows.h"
#include "kernels/gram.h"
#include "kernels/rows.h"
#include "methods/attention_rows.h"

namespace precis {

void register_expected(Registry& registry);

namespace {

struct ExpectedParams : AccumulationParams {
  int future = 512;
  int sinks = 4;
  std::string covariance = "on";
  std::string size = "value";
  double epsilon = 0;

  template <class V>
  void fields(V&& v) {
    v("future", future, 1, 1 << 20, "positions behind the prompt that queries are expected at");
    v("sinks", sinks, 0, 1 << 20, "first tokens, which are left out and kept");
    v("covariance", covariance, {"on", "off"}, "whether the spread of queries counts");
    v("size", size, {"value", "output", "none"}, "what weighs the expected attention");
    v("epsilon", epsilon, 0, 1e6, "added to the expected attention before it is weighed");
    v("window", window, 0, 1 << 20, "last queries whose distribution is taken; 0: all");
  }
};

// The normal distribution of the queries of one query head at future positions.
struct QueryMoments {
  std::vector<double> mean;        // [head_dim]
  std::vector<double> covariance;  // [head_dim, head_dim]; empty: not asked for
};

// Mean turn of the next positions, as one complex number for each pair of channels.
class MeanTurn {
 public:
  MeanTurn(const Rope& rope, std::int64_t first, std::size_t n) : rope_(rope) {
    for (const double frequency : rope.frequencies) {
      double real = 0, imaginary = 0;
      for (std::size_t i = 0; i < n; ++i) {
        const double angle = static_cast<double>(first + static_cast<std::int64_t>(i)) * frequency;
        real += std::cos(angle);
        imaginary += std::sin(angle);
      }
      real_.push_back(real / static_cast<double>(n));
      imaginary_.push_back(imaginary / static_cast<double>(n));
    }
  }

  // Channel c is x[c * stride].
  void apply(double* x, std::size_t stride) const {
    for (std::size_t i = 0; i < rope_.n_pairs(); ++i) {
      double& a = x[rope_.first_channel(i) * stride];
      double& b = x[rope_.second_channel(i) * stride];
      const double turned = a * real_[i] - b * imaginary_[i];
      b = a * imaginary_[i] + b * real_[i];
      a = turned;
    }
  }

 private:
  const Rope& rope_;
  std::vector<double> real_;
  std::vector<double> imaginary_;
};

class ExpectedScorer final : public Scorer {
 public:
  explicit ExpectedScorer(const ExpectedParams& params) : params_(params) {}

  std::size_t queries_needed(std::size_t n_tokens) const override {
    return params_.n_queries(n_tokens);
  }

  void score(HeadView& head, std::span<float> scores) const override {
    const std::size_t n = head.n_tokens;
    const std::size_t n_sinks = std::min(static_cast<std::size_t>(params_.sinks), n);
    std::fill(scores.begin(), scores.end(), 0.0f);
    if (n_sinks == n) return;
    const std::vector<float> keys = rows_of(head.entries.keys, head);
    const std::vector<float> sizes = value_sizes(head);
    std::vector<double> sums(n, 0.0);
    for (std::size_t g = 0; g < head.group; ++g) {
      throw_if_cancelled(head.cancel);
      const std::vector<double> expected = attention(head, keys, moments(head, g), n_sinks);
      for (std::size_t t = n_sinks; t < n; ++t)
        sums[t] += (expected[t - n_sinks] + params_.epsilon) *
                   static_cast<double>(sizes[g * n + t]) / static_cast<double>(head.group);
    }
    for (std::size_t t = n_sinks; t < n; ++t) scores[t] = static_cast<float>(sums[t]);
    const float largest =
        *std::max_element(scores.begin() + static_cast<std::ptrdiff_t>(n_sinks), scores.end());
    std::fill_n(scores.begin(), n_sinks, largest + 1.0f);
  }

 private:
  static std::vector<float> rows_of(const Half* from, const HeadView& head) {
    std::vector<float> rows(head.n_tokens * head.head_dim);
    convert_rows(from, rows.data(), rows.size());
    return rows;
  }

  // What weighs the attention of each query head, [group, n_tokens].
  std::vector<float> value_sizes(HeadView& head) const {
    const std::size_t n = head.n_tokens;
    const std::size_t d = head.head_dim;
    std::vector<float> sizes(head.group * n, 1.0f);
    if (params_.size == "value")
      for (std::size_t g = 0; g < head.group; ++g)
        std::copy_n(head.value_norms().begin(), n, sizes.data() + g * n);
    if (params_.size != "output") return sizes;
    const std::span<const float> factors = head.output_factors();
    const std::vector<float> values = rows_of(head.entries.values, head);
    std::vector<float> projected(n * d);
    for (std::size_t g = 0; g < head.group; ++g) {
      const FloatRows factor{factors.data() + g * d * d, d, d};
      multiply_transposed(values.data(), n, matrix_of(factor), 0, d, projected.data(), d,
                          head.scratch());
      for (std::size_t t = 0; t < n; ++t) {
        double sum = 0;
        for (std::size_t c = 0; c < d; ++c)
          sum +=
              static_cast<double>(projected[t * d + c]) * static_cast<double>(projected[t * d + c]);
        sizes[g * n + t] = static_cast<float>(std::sqrt(sum));
      }
    }
    return sizes;
  }

  // The queries of member g before RoPE (magnitude included), but for those of the sinks.
  std::vector<float> queries_before_rope(const HeadView& head, std::size_t g) const {
    const std::size_t d = head.head_dim;
    const std::size_t n_sinks = static_cast<std::size_t>(params_.sinks);
    const std::size_t first = std::max(head.n_tokens - params_.n_queries(head.n_tokens), n_sinks);
    std::vector<float> rows((head.n_tokens - first) * d);
    static const Rope kNone;
    RopeTurn back(head.rope != nullptr ? *head.rope : kNone);
    for (std::size_t t = first; t < head.n_tokens; ++t) {
      float* row = rows.data() + (t - first) * d;
      std::copy_n(head.query(g, t), d, row);
      back.set_delta(-(head.first_position + static_cast<std::int64_t>(t)));
      back.apply(row);
    }
    return rows;
  }

  QueryMoments moments(HeadView& head, std::size_t g) const {
    const std::size_t d = head.head_dim;
    std::vector<float> rows = queries_before_rope(head, g);
    const std::size_t n = rows.size() / d;
    QueryMoments out;
    out.mean.assign(d, 0.0);
    for (std::size_t i = 0; i < rows.size(); ++i) out.mean[i % d] += static_cast<double>(rows[i]);
    for (double& x : out.mean) x /= static_cast<double>(n);
    if (params_.covariance == "on") {
      for (std::size_t i = 0; i < rows.size(); ++i)
        rows[i] = static_cast<float>(static_cast<double>(rows[i]) - out.mean[i % d]);
      out.covariance.assign(d * d, 0.0);
      add_gram(rows.data(), n, d, d, out.covariance.data(), head.scratch());
      for (double& x : out.covariance) x /= static_cast<double>(n);
    }
    if (head.rope == nullptr) return out;
    const MeanTurn turn(*head.rope, head.first_position + static_cast<std::int64_t>(head.n_tokens),
                        static_cast<std::size_t>(params_.future));
    turn.apply(out.mean.data(), 1);
    if (out.covariance.empty()) return out;
    for (std::size_t c = 0; c < d; ++c) turn.apply(out.covariance.data() + c, d);
    for (std::size_t r = 0; r < d; ++r) turn.apply(out.covariance.data() + r * d, 1);
    return out;
  }

  // Expected attention to the tokens behind the sinks, [n_tokens - n_sinks].
  static std::vector<double> attention(HeadView& head, const std::vector<float>& keys,
                                       const QueryMoments& queries, std::size_t n_sinks) {
    const std::size_t d = head.head_dim;
    const std::size_t n = head.n_tokens - n_sinks;
    const float* first = keys.data() + n_sinks * d;
    const auto scale = static_cast<double>(head.rule.scale);
    std::vector<double> logits(n, 0.0);
    for (std::size_t t = 0; t < n; ++t)
      for (std::size_t c = 0; c < d; ++c)
        logits[t] += scale * queries.mean[c] * static_cast<double>(first[t * d + c]);
    if (!queries.covariance.empty()) {
      std::vector<float> covariance;
      for (const double x : queries.covariance) covariance.push_back(static_cast<float>(x));
      const FloatRows matrix{covariance.data(), d, d};
      std::vector<float> products(n * d);
      multiply_transposed(first, n, matrix_of(matrix), 0, d, products.data(), d, head.scratch());
      for (std::size_t t = 0; t < n; ++t) {
        double form = 0;
        for (std::size_t c = 0; c < d; ++c)
          form += static_cast<double>(products[t * d + c]) * static_cast<double>(first[t * d + c]);
        logits[t] += scale * scale * form / 2;
      }
    }
    const double largest = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (double& z : logits) sum += z = std::exp(z - largest);
    for (double& z : logits) z /= sum;
    return logits;
  }

  ExpectedParams params_;
};

}  // namespace

void register_expected(Registry& registry) {
  const std::string paper = "arXiv 2510.00636";
  registry.add_stage<ExpectedScorer, ExpectedParams>(
      StageKind::kScore, "expected", paper,
      "expected attention of queries to come, times the size of the value");
  registry.add_preset({"expected", "score=expected select=head(recent=0,sinks=4)", paper,
                       "Expected Attention: tokens that queries to come should attend to"});
}

}  // namespace precis
