// Answers and references as code points, in the normal form in which scores compare words. Any
// bytes are allowed: what is not UTF-8 becomes U+FFFD, as in base/utf8.h.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace precis {

std::u32string code_points(std::string_view text);

// White space as Python's str.split() sees it: also U+00A0, U+2028, the control characters
// U+001C ... U+001F and the other spaces of Unicode.
bool is_space(char32_t c);
// The 32 of ASCII, and no others.
bool is_punctuation(char32_t c);

// Lower case of ASCII, Latin-1, Latin Extended-A and basic Cyrillic letters (U+0410 ... U+042F,
// U+0400 ... U+040F). Letters of other alphabets stay as they are.
std::u32string lower_case(std::u32string_view text);

// The stretches between white space, none of them empty.
std::vector<std::u32string> split_words(std::u32string_view text);

// The words that SQuAD's normal form leaves, which LongBench uses: lower case, then without ASCII
// punctuation, then without "a", "an" and "the", split at white space. An article ends where no
// letter, digit or other word character follows; beyond ASCII all counts as word characters but
// white space, combining accents, general punctuation, symbols and emoji.
std::vector<std::u32string> normal_words(std::u32string_view text);

}  // namespace precis
