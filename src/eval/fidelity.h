// How far condensed caches are from the full one: a prefix is condensed, then the text's own
// continuation goes through the real decode path token by token, beside the full cache.
//
// The continuation plays no part in condensing, so nothing here is in-sample.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "eval/eval_method.h"

namespace precis {

struct Passage {
  std::string name;       // of the text
  std::size_t index = 0;  // within the text
  std::vector<Token> prefix;
  std::vector<Token> continuation;
};

// One row per method, in order; times: compress_ms, and decode_ms over n_decoded tokens. Throws
// Error(kInvalidArgument) if a passage does not fit the model's context or a part is empty.
EvalRows run_fidelity(const std::shared_ptr<const Engine>& engine, const Passage& passage,
                      const EvalOptions& options);

// The value below which a share of all values lies (nearest rank); 0 for no values.
double nearest_rank(std::vector<double> values, double share);

}  // namespace precis
