// A text that fills any length: repeated without end, cut between words, with known beginnings of
// sentences where something else may be put in.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace precis {

// Whether there is anything but ASCII white space.
bool has_words(std::string_view text);

class TextCorpus {
 public:
  // The text without white space around it, followed by the separator, and again. Bytes that are
  // not UTF-8 become U+FFFD. REQUIRES: has_words(text), and a separator of white space.
  TextCorpus(std::string_view text, std::string_view separator);

  // The first `size` bytes.
  std::string head(std::size_t size) const;
  // The last place up to `size` where a word begins; within words of more than 64 bytes (scripts
  // without spaces) also where a character does. Never falls as `size` grows.
  std::size_t word_cut(std::size_t size) const;
  // The beginning of a sentence that is nearest to `at`, among 0 ... limit. A sentence ends with a
  // stop, a mark or a blank line, not after an abbreviation; never falls as `at` grows. REQUIRES:
  // at <= limit.
  std::size_t sentence_start(std::size_t at, std::size_t limit) const;
  bool contains(std::string_view part) const { return text_.find(part) != std::string::npos; }

 private:
  std::string text_;                 // with the separator
  std::vector<std::size_t> starts_;  // of sentences, ascending, the first is 0
};

}  // namespace precis
