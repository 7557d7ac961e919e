#include "methods/key_clusters.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "kernels/float_rows.h"
#include "kernels/gram.h"
#include "kernels/rows.h"
#include "methods/hashed_uniform.h"
#include "methods/kept_tokens.h"

namespace precis {
namespace {

// Runs have at least so many clusters if there are as many at all: with fewer, tokens far apart in
// key space share one whatever the metric.
constexpr std::size_t kFewestClusters = 4;
// Rows whose products with all means are held at a time.
constexpr std::size_t kTileRows = 256;

// One run of tokens in the space where distances are Euclidean.
class Run {
 public:
  Run(HeadView& head, std::span<const std::uint32_t> tokens, std::size_t n_clusters,
      const ClusterRule& rule)
      : head_(head), d_(head.head_dim), n_(tokens.size()), points_(n_ * d_), owner_(n_) {
    for (std::size_t i = 0; i < n_; ++i)
      convert_rows(head.entries.keys + tokens[i] * d_, points_.data() + i * d_, d_);
    if (rule.factor != nullptr) {
      std::vector<float> turned(n_ * d_);
      const FloatRows factor{rule.factor, d_, d_};
      multiply_transposed(points_.data(), n_, matrix_of(factor), 0, d_, turned.data(), d_,
                          head.scratch());
      points_.swap(turned);
    }
    centre();
    find_seeds(tokens, n_clusters);
    for (const std::size_t seed : seeds_)
      means_.insert(means_.end(), points_.begin() + static_cast<std::ptrdiff_t>(seed * d_),
                    points_.begin() + static_cast<std::ptrdiff_t>((seed + 1) * d_));
  }

  // The cluster of each token.
  const std::vector<std::size_t>& lloyd(std::size_t steps) {
    for (std::size_t step = 0; step < steps; ++step) {
      throw_if_cancelled(head_.cancel);
      if (step > 0) update_means();
      if (!assign()) break;
    }
    return owner_;
  }
  // The same, of clusters that are drawn.
  const std::vector<std::size_t>& draw(std::span<const std::uint32_t> tokens) {
    const auto k = static_cast<float>(seeds_.size());
    for (std::size_t i = 0; i < n_; ++i)
      owner_[i] = std::min(static_cast<std::size_t>(hashed_uniform(head_.seed, tokens[i]) * k),
                           seeds_.size() - 1);
    refill(owner_);
    return owner_;
  }
  std::size_t n_clusters() const { return seeds_.size(); }

 private:
  // Distances are differences of products: what all keys share (biases of hundreds in Qwen2.5's)
  // would cost their digits.
  void centre() {
    for (std::size_t c = 0; c < d_; ++c) {
      double sum = 0;
      for (std::size_t i = 0; i < n_; ++i) sum += static_cast<double>(points_[i * d_ + c]);
      const auto mean = static_cast<float>(sum / static_cast<double>(n_));
      for (std::size_t i = 0; i < n_; ++i) points_[i * d_ + c] -= mean;
    }
  }

  void find_seeds(std::span<const std::uint32_t> tokens, std::size_t n_clusters) {
    std::vector<float> scores;
    for (const std::uint32_t token : tokens) scores.push_back(head_.scores[token]);
    Tokens best(n_);
    std::iota(best.begin(), best.end(), 0u);
    keep_highest(best, n_clusters, scores.data());
    seeds_.assign(best.begin(), best.end());
  }

  // Whether any token changed its cluster.
  bool assign() {
    const std::size_t k = seeds_.size();
    std::vector<float> norms(k);
    for (std::size_t j = 0; j < k; ++j) {
      double sum = 0;
      for (std::size_t c = 0; c < d_; ++c) {
        const auto x = static_cast<double>(means_[j * d_ + c]);
        sum += x * x;
      }
      norms[j] = static_cast<float>(sum);
    }
    const FloatRows means{means_.data(), d_, d_};
    std::vector<float> products(std::min(kTileRows, n_) * k);
    std::vector<std::size_t> owner(n_);
    for (std::size_t first = 0; first < n_; first += kTileRows) {
      const std::size_t n = std::min(kTileRows, n_ - first);
      multiply_transposed(points_.data() + first * d_, n, matrix_of(means), 0, k, products.data(),
                          k, head_.scratch());
      for (std::size_t i = 0; i < n; ++i) {
        const float* product = products.data() + i * k;
        float best = std::numeric_limits<float>::infinity();
        for (std::size_t j = 0; j < k; ++j) {
          const float distance = norms[j] - 2.0f * product[j];
          if (distance < best) {
            best = distance;
            owner[first + i] = j;
          }
        }
      }
    }
    refill(owner);
    if (owner == owner_ && assigned_) return false;
    owner_.swap(owner);
    assigned_ = true;
    return true;
  }

  // An empty cluster takes its first token back, which may empty another one; each does so once.
  void refill(std::vector<std::size_t>& owner) const {
    std::vector<std::size_t> sizes(seeds_.size(), 0);
    for (const std::size_t j : owner) ++sizes[j];
    for (bool changed = true; changed;) {
      changed = false;
      for (std::size_t j = 0; j < seeds_.size(); ++j) {
        if (sizes[j] > 0) continue;
        --sizes[owner[seeds_[j]]];
        owner[seeds_[j]] = j;
        sizes[j] = 1;
        changed = true;
      }
    }
  }

  void update_means() {
    std::vector<double> sums(seeds_.size() * d_, 0.0);
    std::vector<std::size_t> counts(seeds_.size());
    for (std::size_t i = 0; i < n_; ++i) {
      double* sum = sums.data() + owner_[i] * d_;
      for (std::size_t c = 0; c < d_; ++c) sum[c] += static_cast<double>(points_[i * d_ + c]);
      ++counts[owner_[i]];
    }
    for (std::size_t i = 0; i < means_.size(); ++i)
      means_[i] = static_cast<float>(sums[i] / static_cast<double>(counts[i / d_]));
  }

  HeadView& head_;
  std::size_t d_;
  std::size_t n_;
  std::vector<float> points_;       // [n, d]
  std::vector<std::size_t> owner_;  // [n]
  bool assigned_ = false;
  std::vector<std::size_t> seeds_;  // ascending
  std::vector<float> means_;        // [clusters, d]
};

}  // namespace

KeyClusters cluster_keys(HeadView& head, std::span<const std::uint32_t> tokens,
                         std::size_t n_clusters, const ClusterRule& rule) {
  const std::size_t n = tokens.size();
  const std::size_t k = std::min(n_clusters, n);
  std::vector<std::vector<std::uint32_t>> groups;
  const std::size_t n_runs = std::clamp<std::size_t>((n + rule.span - 1) / rule.span, 1,
                                                     std::max<std::size_t>(1, k / kFewestClusters));
  for (std::size_t run = 0; run < n_runs && k > 0; ++run) {
    const std::size_t begin = n * run / n_runs;
    const std::size_t end = n * (run + 1) / n_runs;
    const std::span<const std::uint32_t> own = tokens.subspan(begin, end - begin);
    Run lloyd(head, own, k * (run + 1) / n_runs - k * run / n_runs, rule);
    const std::vector<std::size_t>& owner =
        rule.is_random ? lloyd.draw(own) : lloyd.lloyd(rule.steps);
    const std::size_t first = groups.size();
    groups.resize(first + lloyd.n_clusters());
    for (std::size_t i = 0; i < own.size(); ++i) groups[first + owner[i]].push_back(own[i]);
  }
  std::sort(groups.begin(), groups.end(),
            [](const auto& a, const auto& b) { return a.back() < b.back(); });
  KeyClusters out;
  out.tokens.reserve(n);
  out.begins.push_back(0);
  for (const std::vector<std::uint32_t>& group : groups) {
    out.tokens.insert(out.tokens.end(), group.begin(), group.end());
    out.begins.push_back(out.tokens.size());
  }
  return out;
}

std::vector<float> mean_rows(const KeyClusters& clusters, const Half* rows, std::size_t head_dim) {
  std::vector<float> out(clusters.size() * head_dim);
  std::vector<float> row(head_dim);
  std::vector<double> sums(head_dim);
  for (std::size_t j = 0; j < clusters.size(); ++j) {
    std::fill(sums.begin(), sums.end(), 0.0);
    const std::span<const std::uint32_t> members = clusters.members(j);
    for (const std::uint32_t token : members) {
      convert_rows(rows + token * head_dim, row.data(), head_dim);
      for (std::size_t c = 0; c < head_dim; ++c) sums[c] += static_cast<double>(row[c]);
    }
    for (std::size_t c = 0; c < head_dim; ++c)
      out[j * head_dim + c] = static_cast<float>(sums[c] / static_cast<double>(members.size()));
  }
  return out;
}

std::vector<float> query_metric(HeadView& head, const float* rows, std::size_t n_rows) {
  const std::size_t d = head.head_dim;
  std::vector<double> gram(d * d, 0.0);
  add_gram(rows, n_rows, d, d, gram.data(), head.scratch());
  for (double& x : gram) x /= static_cast<double>(n_rows);
  std::vector<float> factor(d * d);
  factorise_gram(gram, d, factor.data());
  return factor;
}

}  // namespace precis
