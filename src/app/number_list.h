// Lists on the command line, as llama-bench writes them: "512,2048", "1-4", "1024-8192*2",
// "0-96+32".
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace precis::app {

// Splits at commas that are not inside parentheses, so that a SPEC stays whole. White space at the
// ends of a part is dropped; empty parts are left out.
std::vector<std::string> split_list(const std::string& text);

// Numbers of all texts, in order. A range is FIRST-LAST, stepping by 1, +STEP or *FACTOR; its last
// number is at most LAST. Throws Error(kInvalidArgument) that names the option, the text and the
// accepted range: for anything else, a number outside [minimum, maximum], more than 1000 numbers.
std::vector<std::size_t> parse_numbers(const std::string& option,
                                       const std::vector<std::string>& texts, std::size_t minimum,
                                       std::size_t maximum);

}  // namespace precis::app
