// Small tokenizers for tests of what only counts tokens.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tasks/sample.h"

namespace precis::test {

struct NamedCodec {
  const char* name;
  TokenCodec codec;
};

// A codec of any rule that says how many bytes the next token takes.
template <class Next>
TokenCodec codec_of(Next next) {
  struct Vocabulary {
    std::map<std::string, std::int32_t, std::less<>> ids;
    std::vector<std::string> pieces;
  };
  const auto vocabulary = std::make_shared<Vocabulary>();
  TokenCodec out;
  out.encode = [vocabulary, next](std::string_view text) {
    std::vector<std::int32_t> tokens;
    while (!text.empty()) {
      const std::string_view piece = text.substr(0, next(text));
      auto found = vocabulary->ids.find(piece);
      if (found == vocabulary->ids.end()) {
        const auto id = static_cast<std::int32_t>(vocabulary->pieces.size());
        found = vocabulary->ids.emplace(piece, id).first;
        vocabulary->pieces.emplace_back(piece);
      }
      tokens.push_back(found->second);
      text.remove_prefix(piece.size());
    }
    return tokens;
  };
  out.decode = [vocabulary](std::span<const std::int32_t> tokens) {
    std::string text;
    for (const std::int32_t token : tokens)
      text += vocabulary->pieces[static_cast<std::size_t>(token)];
    return text;
  };
  return out;
}

inline bool is_blank(char c) { return c == ' ' || c == '\n'; }

// One token for n bytes.
inline TokenCodec bytes_codec(std::size_t n) {
  return codec_of([n](std::string_view text) { return std::min(n, text.size()); });
}

// One token for a word with the white space before it.
inline TokenCodec words_codec() {
  return codec_of([](std::string_view text) {
    std::size_t n = 0;
    while (n < text.size() && is_blank(text[n])) ++n;
    while (n < text.size() && !is_blank(text[n])) ++n;
    return n;
  });
}

// Greedy: takes merges across words and sentences where it meets one, so that counts of parts do
// not add up; else up to three characters of a word, with a space before it.
inline TokenCodec merging_codec() {
  return codec_of([](std::string_view text) -> std::size_t {
    constexpr std::array<std::string_view, 14> kMerges = {
        "... ... ...", ". The ", "is in ", "e the ", " for ", "s on", "y.\n\n",
        ".\n\nA",      "n a ",   "d t",    "\n\n",   ": ",    ", ",   "e o"};
    for (const std::string_view merge : kMerges)
      if (text.substr(0, merge.size()) == merge) return merge.size();
    std::size_t n = is_blank(text[0]) ? 1 : 0;
    const std::size_t most = std::min(text.size(), n + 3);
    while (n < most && !is_blank(text[n])) ++n;
    return std::max<std::size_t>(n, 1);
  });
}

inline std::vector<NamedCodec> fake_codecs() {
  return {{"four bytes", bytes_codec(4)}, {"words", words_codec()}, {"merging", merging_codec()}};
}

}  // namespace precis::test
