// Numbers and texts as a person reads them; the same in every locale.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "report/paired.h"

namespace precis {

// With `digits` after the point; never "-0.0". "-" for a number that is not finite; from 1e15 on as
// "1.2e+20".
std::string fixed_text(double value, int digits);
// Three significant digits, as small and large as it may be: "0.00123", "12.3", "45600", "1.2e-07".
std::string short_text(double value);
// With a sign: "+1.2", "-0.3", "0.0".
std::string signed_text(double value, int digits);
// "1.5 MiB".
std::string bytes_text(double bytes);
// A share as "25.0 %".
std::string percent_text(double share);
// "61.2 [55.1, 67.0]"; without an interval "61.2". Values times `scale`.
std::string estimate_text(const Estimate& estimate, double scale, int digits);
// The same for a difference, with its sign.
std::string difference_text(const Estimate& estimate, double scale, int digits);

// At most so many bytes, cut between characters, with "..." where it was cut; line breaks and other
// control characters become blanks.
std::string shorten(std::string_view text, std::size_t most_bytes);

}  // namespace precis
