// Reads generated samples back, by other means than the generators.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "tasks/sample.h"

namespace precis::test {

inline std::size_t n_occurrences(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

inline bool is_valid_utf8(const std::string& text) {
  Utf8Assembler assembler;
  assembler.push(text);
  assembler.finish();
  return assembler.n_replaced() == 0;
}

inline std::size_t length_of(const TaskSample& sample, const TokenCodec& codec) {
  const TaskQuestion& question = sample.questions.at(0);
  return codec.encode(sample.context).size() + codec.encode(question.text).size() +
         codec.encode(question.answer_prefix).size() + sample.rule.max_new_tokens;
}

struct FoundNeedle {
  std::string key;
  std::string value;
  std::size_t at;   // first byte of its sentence
  std::size_t end;  // byte after its sentence
};

inline std::vector<FoundNeedle> needles_in(const std::string& text) {
  static const std::regex form("A secret (?:number|code) for (\\S+) is: ([0-9a-f-]+)\\.");
  std::vector<FoundNeedle> out;
  for (std::sregex_iterator it(text.begin(), text.end(), form), end; it != end; ++it) {
    const auto at = static_cast<std::size_t>(it->position());
    out.push_back({(*it)[1], (*it)[2], at, at + static_cast<std::size_t>(it->length())});
  }
  return out;
}

// Runs the assignments of a text in order. Nothing if one uses a variable that has no value yet.
inline std::optional<std::map<std::string, std::string>> run_assignments(const std::string& text) {
  static const std::regex form("VAR ([A-Z]+) = (?:VAR ([A-Z]+)|([0-9]+))\\.");
  std::map<std::string, std::string> values;
  for (std::sregex_iterator it(text.begin(), text.end(), form), end; it != end; ++it) {
    if ((*it)[3].matched) {
      values[(*it)[1]] = (*it)[3];
      continue;
    }
    const auto from = values.find((*it)[2]);
    if (from == values.end()) return std::nullopt;
    values[(*it)[1]] = from->second;
  }
  return values;
}

using Counts = std::map<std::string, std::size_t>;

// Of the last list in the text that is numbered from 1 without a gap.
inline Counts count_numbered(const std::string& text) {
  std::istringstream in(text);
  Counts counts;
  std::size_t expected = 1;
  std::string number;
  std::string word;
  while (in >> number) {
    if (number == "1.") {
      counts.clear();
      expected = 1;
    }
    if (number != std::to_string(expected) + ".") continue;
    if (!(in >> word)) break;
    ++counts[word];
    ++expected;
  }
  return counts;
}

// Words after the first blank line.
inline Counts count_words(const std::string& text) {
  std::istringstream in(text.substr(text.find("\n\n")));
  Counts counts;
  for (std::string word; in >> word;) ++counts[word];
  return counts;
}

// Most frequent first.
inline std::vector<std::pair<std::size_t, std::string>> ranked(const Counts& counts) {
  std::vector<std::pair<std::size_t, std::string>> out;
  for (const auto& [word, n] : counts) out.emplace_back(n, word);
  std::sort(out.rbegin(), out.rend());
  return out;
}

inline std::set<std::string> as_set(const std::vector<std::string>& words) {
  return {words.begin(), words.end()};
}

// Sentences of different lengths, each begins with a capital, with some letters beyond ASCII.
inline std::string test_essay() {
  const char* const subjects[] = {"The old miller",
                                  "My aunt",
                                  "A traveller from caf\xC3\xA9 Iris",
                                  "Nobody",
                                  "Every second neighbour",
                                  "The na\xC3\xAFve clerk"};
  const char* const verbs[] = {"walked past", "wrote about",  "never forgot",
                               "asked for",   "slept beside", "sold"};
  const char* const objects[] = {
      "the broken mill.", "a letter that had come too late to be of any use!", "his own shoes.",
      "the garden behind the church, where it was cool?", "tea."};
  std::string out;
  std::size_t i = 0;
  for (const char* subject : subjects)
    for (const char* verb : verbs)
      for (const char* object : objects) {
        out += std::string(subject) + " " + verb + " " + object;
        out += ++i % 7 == 0 ? "\n\n" : " ";
      }
  return out;
}

}  // namespace precis::test
