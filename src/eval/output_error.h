// Error of attention's output under a condensed cache, for queries that no method saw.
#pragma once

#include <vector>

#include "engine/session.h"

namespace precis {

// Reads a text whole, then compares caches of its beginning.
class OutputErrorProbe {
 public:
  // Prefills prefix + continuation and keeps all rows, and the continuation's queries.
  OutputErrorProbe(std::shared_ptr<const Engine> engine, std::span<const Token> prefix,
                   std::span<const Token> continuation, const CallControl& control);

  // sqrt(mean over the continuation's queries and the group of ||o - o_full||^2 / ||o_full||^2),
  // [compressible layer][KV head]. o_full attends to all rows before the query; o to the entries of
  // `condensed`, a cache of the prefix, and to the continuation's rows.
  std::vector<std::vector<double>> measure(const Session& condensed, const CancelFlag* cancel);

 private:
  double measure_head(const FrozenLayer& frozen, std::size_t layer, std::size_t head,
                      std::int64_t moved, Scratch& scratch) const;

  Session whole_;
  std::size_t n_prefix_;
  std::size_t n_continuation_;
};

}  // namespace precis
