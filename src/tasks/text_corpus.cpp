#include "tasks/text_corpus.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/utf8.h"

namespace precis {
namespace {

constexpr std::string_view kSpaces = " \t\n\r\v\f";
constexpr std::size_t kLongestWord = 64;

bool is_space(char c) { return kSpaces.find(c) != std::string_view::npos; }
bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }
bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

std::string valid_utf8(std::string_view text) {
  Utf8Assembler assembler;
  std::string out = assembler.push(text);
  return out + assembler.finish();
}

// Length of the first of `marks` that the text has at `at`, or 0.
template <std::size_t n>
std::size_t mark_at(std::string_view text, std::size_t at,
                    const std::array<std::string_view, n>& marks) {
  for (const std::string_view mark : marks)
    if (text.substr(at, mark.size()) == mark) return mark.size();
  return 0;
}

constexpr std::array<std::string_view, 3> kStops = {".", "!", "?"};
// Ideographic full stop and the wide ! and ?; no space follows them.
constexpr std::array<std::string_view, 3> kWideStops = {"\xE3\x80\x82", "\xEF\xBC\x81",
                                                        "\xEF\xBC\x9F"};
// Straight and curly quotes and brackets, which belong to the sentence that they close.
constexpr std::array<std::string_view, 8> kClosers = {
    "\"", "'", ")", "]", "\xE2\x80\x9D", "\xE2\x80\x99", "\xE3\x80\x8D", "\xE3\x80\x8F"};

std::size_t skip_closers(std::string_view text, std::size_t at) {
  while (const std::size_t n = mark_at(text, at, kClosers)) at += n;
  return at;
}

std::size_t skip_spaces(std::string_view text, std::size_t at) {
  while (at < text.size() && is_space(text[at])) ++at;
  return at;
}

// A full stop at `at` that belongs to the word before it.
bool is_abbreviation(std::string_view text, std::size_t at) {
  constexpr std::array<std::string_view, 10> kKnown = {"Mr",   "Mrs", "Ms", "Dr",  "St",
                                                       "Prof", "vs",  "No", "Fig", "cf"};
  std::size_t begin = at;
  while (begin > 0 && (is_upper(text[begin - 1]) || is_lower(text[begin - 1]))) --begin;
  const std::string_view word = text.substr(begin, at - begin);
  return word.size() == 1 || std::find(kKnown.begin(), kKnown.end(), word) != kKnown.end();
}

// Where the next sentence begins if one ends at `at`, else 0.
std::size_t next_sentence(std::string_view text, std::size_t at) {
  if (text[at] == '\n') {
    const std::size_t next = skip_spaces(text, at);
    const std::string_view gap = text.substr(at, next - at);
    return std::count(gap.begin(), gap.end(), '\n') > 1 ? next : 0;
  }
  if (const std::size_t n = mark_at(text, at, kWideStops))
    return skip_spaces(text, skip_closers(text, at + n));
  if (mark_at(text, at, kStops) == 0) return 0;
  const std::size_t end = skip_closers(text, at + 1);
  const std::size_t next = skip_spaces(text, end);
  if (next == end || next == text.size()) return 0;
  if (text[at] == '.' && (is_lower(text[next]) || is_abbreviation(text, at))) return 0;
  return next;
}

}  // namespace

bool has_words(std::string_view text) {
  return text.find_first_not_of(kSpaces) != std::string_view::npos;
}

TextCorpus::TextCorpus(std::string_view text, std::string_view separator) {
  PRECIS_CHECK(has_words(text) && !separator.empty() && !has_words(separator), text.size());
  const std::size_t first = text.find_first_not_of(kSpaces);
  text_ = valid_utf8(text.substr(first, text.find_last_not_of(kSpaces) + 1 - first));
  starts_.push_back(0);
  for (std::size_t i = 0; i < text_.size(); ++i) {
    const std::size_t next = next_sentence(text_, i);
    if (next <= starts_.back() || next >= text_.size()) continue;
    starts_.push_back(next);
    i = next - 1;  // so that a long gap is read once
  }
  text_.append(separator);
}

std::string TextCorpus::head(std::size_t size) const {
  std::string out;
  out.reserve(size);
  while (out.size() < size) out.append(text_, 0, std::min(text_.size(), size - out.size()));
  return out;
}

std::size_t TextCorpus::word_cut(std::size_t size) const {
  const std::size_t at = size % text_.size();
  const std::size_t base = size - at;
  std::size_t p = at;
  for (; p > 0 && at - p < kLongestWord; --p)
    if (!is_space(text_[p]) && is_space(text_[p - 1])) return base + p;
  if (p == 0) return base;
  p = at;
  while (is_continuation(text_[p])) --p;
  return base + p;
}

std::size_t TextCorpus::sentence_start(std::size_t at, std::size_t limit) const {
  PRECIS_CHECK(at <= limit, at, " > ", limit);
  const std::size_t in_text = at % text_.size();
  const std::size_t base = at - in_text;
  const auto after = std::upper_bound(starts_.begin(), starts_.end(), in_text);
  const std::size_t below = base + *std::prev(after);
  const std::size_t above = base + (after == starts_.end() ? text_.size() : *after);
  return above <= limit && above - at < at - below ? above : below;
}

}  // namespace precis
