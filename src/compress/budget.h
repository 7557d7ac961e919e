// How much may be kept. Budgets are enforced in bytes of live cache: keys, values, biases,
// positions and residual rows all count, so that methods compare at equal memory. A ratio or a
// token count means the bytes which that part of the dense cache would take (keys and values only);
// an entry of a condensed cache costs a few bytes more (its position, its bias), so slightly fewer
// entries fit.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace precis {

struct Budget {
  enum class Unit { kRatio, kTokens, kBytes };
  Unit unit = Unit::kRatio;
  double ratio = 1.0;      // kRatio: kept fraction, in (0, 1]
  std::size_t amount = 0;  // kTokens: tokens per KV head; kBytes: bytes of the whole cache; > 0

  // "25%", "0.25", "2048" (tokens) or "512MiB" / "300MB" / "64KiB" / "1.5GiB" / "4096B" (any case).
  // Throws Error(kInvalidArgument) with the text and the accepted range. "0.25" is a ratio only
  // because it contains a point; "1" is one token.
  static Budget parse(std::string_view text);
  // Parses back to the same budget.
  std::string print() const;
  // Bytes allowed for a dense cache of dense_bytes over n_tokens tokens; at most dense_bytes.
  std::size_t bytes(std::size_t dense_bytes, std::size_t n_tokens) const;
};

}  // namespace precis
