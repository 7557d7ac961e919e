#include "tasks/answer_text.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/utf8.h"

namespace precis {
namespace {

struct Range {
  char32_t first;
  char32_t last;
};

// Blocks beyond ASCII without letters or digits, in order. Single letters within them (as in the
// block of letter-like symbols, which is left out) matter only beside an article.
constexpr auto kNotInWords = std::to_array<Range>({
    {0x80, 0xA9},       {0xAB, 0xB1},     {0xB4, 0xB4},     {0xB6, 0xB8},     {0xBB, 0xBB},
    {0xBF, 0xBF},       {0xD7, 0xD7},     {0xF7, 0xF7},     {0x300, 0x36F},   {0x1680, 0x1680},
    {0x2000, 0x206F},   {0x20A0, 0x20FF}, {0x2190, 0x245F}, {0x2500, 0x2775}, {0x2794, 0x2BFF},
    {0x2E00, 0x2E7F},   {0x3000, 0x3004}, {0x3008, 0x3020}, {0xE000, 0xF8FF}, {0xFE00, 0xFE6F},
    {0xFF00, 0xFF0F},   {0xFF1A, 0xFF20}, {0xFF3B, 0xFF40}, {0xFF5B, 0xFF65}, {0xFFFD, 0xFFFD},
    {0x1F000, 0x1FAFF},
});

bool is_in_word(char32_t c) {
  if (c < 0x80)
    return (c >= U'0' && c <= U'9') || (c >= U'a' && c <= U'z') || (c >= U'A' && c <= U'Z') ||
           c == U'_';
  return std::none_of(kNotInWords.begin(), kNotInWords.end(),
                      [&](const Range& r) { return r.first <= c && c <= r.last; });
}

char32_t lower_letter(char32_t c) {
  if (c < 0x80) return c >= U'A' && c <= U'Z' ? c + 32 : c;
  if (c >= 0xC0 && c <= 0xDE) return c == 0xD7 ? c : c + 32;
  // Latin Extended-A holds pairs, capital first: on even places, or on odd ones in two stretches.
  // U+0130 and U+0138 are no capitals of a pair.
  if ((c >= 0x100 && c <= 0x12F) || (c >= 0x132 && c <= 0x137) || (c >= 0x14A && c <= 0x177))
    return c | 1U;
  if (c == 0x178) return 0xFF;
  if ((c >= 0x139 && c <= 0x148) || (c >= 0x179 && c <= 0x17E)) return c % 2 == 1 ? c + 1 : c;
  if (c >= 0x410 && c <= 0x42F) return c + 32;
  if (c >= 0x400 && c <= 0x40F) return c + 80;
  return c;
}

bool is_article(std::u32string_view word) {
  return word == U"a" || word == U"an" || word == U"the";
}

}  // namespace

std::u32string code_points(std::string_view text) {
  Utf8Assembler assembler;
  std::string valid = assembler.push(text);
  valid += assembler.finish();
  std::u32string out;
  out.reserve(valid.size());
  for (std::size_t i = 0; i < valid.size();) {
    const auto lead = static_cast<std::uint8_t>(valid[i]);
    const std::size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    char32_t c = length == 1 ? lead : lead & (0xFFU >> (length + 1));
    for (std::size_t k = 1; k < length; ++k)
      c = c << 6U | (static_cast<std::uint8_t>(valid[i + k]) & 0x3FU);
    out.push_back(c);
    i += length;
  }
  return out;
}

bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

bool is_punctuation(char32_t c) {
  return (c >= 0x21 && c <= 0x2F) || (c >= 0x3A && c <= 0x40) || (c >= 0x5B && c <= 0x60) ||
         (c >= 0x7B && c <= 0x7E);
}

std::u32string lower_case(std::u32string_view text) {
  std::u32string out(text);
  for (char32_t& c : out) c = lower_letter(c);
  return out;
}

std::vector<std::u32string> split_words(std::u32string_view text) {
  std::vector<std::u32string> out;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = i;
    while (end < text.size() && !is_space(text[end])) ++end;
    if (end > i) out.emplace_back(text.substr(i, end - i));
    i = end + 1;
  }
  return out;
}

std::vector<std::u32string> normal_words(std::u32string_view text) {
  std::u32string plain = lower_case(text);
  std::erase_if(plain, is_punctuation);
  std::u32string kept;
  for (std::size_t i = 0; i < plain.size();) {
    std::size_t end = i;
    while (end < plain.size() && is_in_word(plain[end])) ++end;
    const std::u32string_view word = std::u32string_view(plain).substr(i, end - i);
    if (is_article(word)) {
      kept += U' ';
    } else {
      kept += word;
    }
    if (end < plain.size()) kept += plain[end];
    i = end + 1;
  }
  return split_words(kept);
}

}  // namespace precis
