// Smoothing of scores over neighbouring tokens, as window-based scorers need it.
#pragma once

#include <span>

namespace precis {

// Throws Error(kInvalidArgument) unless the kernel is odd: an even one has no centre.
void check_pool_width(int width);

// pooled[j] = (1 / width) sum of scores[j - width/2 .. j + width/2], 0 outside of the span. Padding
// counts in the divisor (avg_pool1d of PyTorch with its defaults), so the ends are lower.
void average_pool(std::span<const float> scores, int width, std::span<float> pooled);

// pooled[j] = max of scores[j - width/2 .. j + width/2] inside of the span.
void max_pool(std::span<const float> scores, int width, std::span<float> pooled);

}  // namespace precis
