// Tokens whose keys are alike, and their means: what a residual entry stands for (ResKV, arXiv
// 2607.29591, Eq. 12).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "compress/stage.h"

namespace precis {

// Tokens in clusters. Clusters are in order of their last token, so that those that end before a
// position come first. None is empty.
struct KeyClusters {
  std::vector<std::uint32_t> tokens;  // cluster by cluster, ascending within each
  std::vector<std::size_t> begins;    // [clusters + 1], into tokens

  std::size_t size() const { return begins.empty() ? 0 : begins.size() - 1; }
  std::span<const std::uint32_t> members(std::size_t cluster) const {
    return std::span(tokens).subspan(begins[cluster], begins[cluster + 1] - begins[cluster]);
  }
};

struct ClusterRule {
  // Tokens are clustered within runs of so many of them that follow each other, so that the cost
  // stays linear in the prompt: n_clusters / n_tokens * span distances for a token and step. Runs
  // get longer where they would have fewer than 4 clusters.
  std::size_t span = 1024;
  std::size_t steps = 4;  // assignments, >= 1; the first is to the tokens that clusters start from
  // [head_dim, head_dim]: distances are ||factor (a - b)||; nullptr: ||a - b||.
  const float* factor = nullptr;
  // For ablations: clusters are drawn from the head's seed, whatever the keys.
  bool is_random = false;
};

// Lloyd's algorithm on keys as stored, started from the tokens with the highest scores of each run,
// the earlier of equals; a token goes to the nearest mean, the first of equals. A cluster that lost
// all its tokens takes back the one that it started from. At most n_clusters clusters.
// tokens ascend; head.scores are read. Same bits for any caller; distances are f32.
KeyClusters cluster_keys(HeadView& head, std::span<const std::uint32_t> tokens,
                         std::size_t n_clusters, const ClusterRule& rule);

// The mean of the members' rows of f16, [clusters, head_dim].
std::vector<float> mean_rows(const KeyClusters& clusters, const Half* rows, std::size_t head_dim);

// R with ||R x||^2 = mean of (q.x)^2 over rows of queries, [head_dim, head_dim].
std::vector<float> query_metric(HeadView& head, const float* rows, std::size_t n_rows);

}  // namespace precis
