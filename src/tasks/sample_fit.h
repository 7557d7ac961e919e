// How a generated sample gets its asked length in the model's own tokens.
#pragma once

#include <cstddef>
#include <functional>
#include <limits>
#include <string>

#include "tasks/sample.h"

namespace precis {

// Everything of a sample but its length. The context is a function of two sizes: that of what the
// task consists of (bytes of a haystack, needles, words of a list), and that of a closing filler in
// far smaller units, for tasks whose own units are too coarse. Both functions must always give the
// same text for the same sizes. Token counts need not add up over parts of a text, but should grow
// with either size.
struct SampleDraft {
  std::function<std::string(std::size_t size, std::size_t filler)> context;
  std::size_t least = 0;  // the size below which the task would lose its sense
  std::size_t most = std::numeric_limits<std::size_t>::max() / 4;
  std::size_t probe = 1;  // what is added to `least` to see how tokens grow with the size
  TaskQuestion question;
};

struct FittedSample {
  bool fits = false;  // else only least_length is set
  std::size_t least_length = 0;
  TaskSample sample;
};

// Fills up the context until
//   tokens of context + question + answer prefix, each by itself, + rule.max_new_tokens
// lie in [length - length / 100, length]; as close below `length` as the units allow where that
// cannot be met. The context is tokenized some 3 to 6 times at long lengths. REQUIRES: length of at
// most kLongestSample.
FittedSample fit_sample(const SampleDraft& draft, const TaskRule& rule, std::size_t length,
                        const TokenCodec& codec);

inline constexpr std::size_t kLongestSample = std::size_t{1} << 20;

// The usual filler: a line of `n_words` words, none longer than four letters. Nothing for 0.
std::string filler_line(std::size_t n_words);

}  // namespace precis
