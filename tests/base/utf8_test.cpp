// Utf8Assembler against an independent decoder, over every split.
#include "base/utf8.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

namespace precis {
namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";

// A second implementation, by code point and not by table: decode, refuse what is overlong, a
// surrogate or too large, and replace the longest beginning that some longer text could still make
// whole.
bool could_begin(const std::vector<std::uint8_t>& bytes, std::size_t length) {
  // Every way to go on has continuation bytes only, so the least and greatest completions bound the
  // code point.
  std::uint32_t low = length == 2   ? bytes[0] & 0x1Fu
                      : length == 3 ? bytes[0] & 0x0Fu
                                    : bytes[0] & 0x07u;
  std::uint32_t high = low;
  for (std::size_t i = 1; i < length; ++i) {
    const bool known = i < bytes.size();
    if (known && (bytes[i] & 0xC0u) != 0x80u) return false;
    low = (low << 6) | (known ? bytes[i] & 0x3Fu : 0x00u);
    high = (high << 6) | (known ? bytes[i] & 0x3Fu : 0x3Fu);
  }
  const std::uint32_t minimum = length == 2 ? 0x80u : length == 3 ? 0x800u : 0x10000u;
  if (high < minimum || low > 0x10FFFFu) return false;
  return !(low >= 0xD800u && high <= 0xDFFFu);
}

std::size_t length_by_lead(std::uint8_t lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC0 && lead < 0xE0) return 2;
  if (lead >= 0xE0 && lead < 0xF0) return 3;
  if (lead >= 0xF0 && lead < 0xF8) return 4;
  return 0;
}

std::string reference_decode(const std::string& bytes, std::size_t* n_replaced) {
  std::string out;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t length = length_by_lead(static_cast<std::uint8_t>(bytes[at]));
    std::vector<std::uint8_t> taken = {static_cast<std::uint8_t>(bytes[at])};
    if (length == 1) {
      out += bytes[at++];
      continue;
    }
    bool begun = length != 0 && could_begin(taken, length);
    while (begun && taken.size() < length && at + taken.size() < bytes.size()) {
      taken.push_back(static_cast<std::uint8_t>(bytes[at + taken.size()]));
      if (!could_begin(taken, length)) {
        taken.pop_back();
        break;
      }
    }
    if (begun && taken.size() == length) {
      out.append(taken.begin(), taken.end());
    } else {
      out += kReplacement;
      ++*n_replaced;
    }
    at += taken.size();
  }
  return out;
}

std::string assemble(const std::vector<std::string>& pieces, std::size_t* n_replaced) {
  Utf8Assembler assembler;
  std::string out;
  for (const std::string& piece : pieces) out += assembler.push(piece);
  out += assembler.finish();
  *n_replaced = assembler.n_replaced();
  return out;
}

void expect_same(const std::string& bytes, const std::vector<std::string>& pieces) {
  std::size_t expected_count = 0, count = 0;
  const std::string expected = reference_decode(bytes, &expected_count);
  EXPECT_EQ(assemble(pieces, &count), expected) << testing::PrintToString(bytes);
  EXPECT_EQ(count, expected_count) << testing::PrintToString(bytes);
}

TEST(Utf8Assembler, KnownAnswers) {
  // Values that Python's bytes.decode(errors="replace") gives.
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", ""},
      {"abc", "abc"},
      {"\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x80", "\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x80"},
      {"a\xFFz", "a\xEF\xBF\xBDz"},
      {"\xC0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD"},
      {"\xE0\x80\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
      {"\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
      {"\xF0\x9F\x98z", "\xEF\xBF\xBDz"},
      {"\xF0\x9F\x98", "\xEF\xBF\xBD"},
      {"\xF4\x90\x80\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
      {"\xE4\xB8\xE4\xB8\xAD", "\xEF\xBF\xBD\xE4\xB8\xAD"},
  };
  for (const auto& [bytes, expected] : cases) {
    std::size_t count = 0;
    EXPECT_EQ(assemble({bytes}, &count), expected) << testing::PrintToString(bytes);
    expect_same(bytes, {bytes});
  }
}

TEST(Utf8Assembler, KeepsBackOnlyAnUnfinishedCharacter) {
  Utf8Assembler assembler;
  EXPECT_EQ(assembler.push("a\xF0\x9F"), "a");
  EXPECT_EQ(assembler.push("\x98"), "");
  EXPECT_EQ(assembler.push("\x80z"), "\xF0\x9F\x98\x80z");
  EXPECT_EQ(assembler.push(""), "");
  EXPECT_EQ(assembler.finish(), "");
  EXPECT_EQ(assembler.n_replaced(), 0u);
  // An overlong beginning can never become whole, so nothing waits for it.
  EXPECT_EQ(assembler.push("\xE0\x80"), std::string(kReplacement) + kReplacement);
}

TEST(Utf8Assembler, EveryPairAndTripleOfInterestingBytes) {
  const std::string bytes = {'\x00', 'a',    '\x7F', '\x80', '\x8F', '\x90', '\x9F', '\xA0',
                             '\xBF', '\xC0', '\xC2', '\xDF', '\xE0', '\xE1', '\xED', '\xEF',
                             '\xF0', '\xF1', '\xF4', '\xF5', '\xF8', '\xFF'};
  for (const char a : bytes) {
    for (const char b : bytes) {
      for (const char c : bytes) {
        const std::string text = {a, b, c};
        expect_same(text, {text});
        expect_same(text, {text.substr(0, 1), text.substr(1, 1), text.substr(2)});
      }
    }
  }
}

TEST(Utf8Assembler, AnySplitOfAnyBytesGivesTheSame) {
  std::mt19937 draw(8);
  const std::string sample =
      "Pr\xC3\xA9"
      "cis \xE4\xB8\xAD\xE6\x96\x87 \xF0\x9F\x98\x80\xF0\x9F\x91\x8D end";
  for (int round = 0; round < 3000; ++round) {
    std::string bytes;
    if (round % 2 == 0) {  // valid text with some bytes damaged
      bytes = sample;
      for (std::size_t i = draw() % 4; i > 0; --i) {
        bytes[draw() % bytes.size()] = static_cast<char>(draw() & 0xFF);
      }
    } else {
      for (std::size_t n = draw() % 24; n > 0; --n) bytes += static_cast<char>(draw() & 0xFF);
    }
    std::vector<std::string> pieces;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t n = draw() % 4;  // pieces of 0 to 3 bytes
      pieces.push_back(bytes.substr(at, n));
      at += n;
    }
    expect_same(bytes, pieces);
  }
}

}  // namespace
}  // namespace precis
