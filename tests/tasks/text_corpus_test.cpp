#include "tasks/text_corpus.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace precis {
namespace {

// All beginnings of sentences up to a limit, asked for at every place.
std::vector<std::size_t> all_starts(const TextCorpus& text, std::size_t limit) {
  std::vector<std::size_t> out;
  for (std::size_t at = 0; at <= limit; ++at) {
    const std::size_t start = text.sentence_start(at, limit);
    EXPECT_LE(start, limit);
    if (out.empty() || out.back() != start) out.push_back(start);
  }
  return out;
}

std::vector<std::string> sentences(const std::string& text) {
  const TextCorpus corpus(text, "\n\n");
  std::vector<std::size_t> starts = all_starts(corpus, text.size());
  starts.push_back(text.size());
  std::vector<std::string> out;
  for (std::size_t i = 0; i + 1 < starts.size(); ++i)
    out.push_back(text.substr(starts[i], starts[i + 1] - starts[i]));
  return out;
}

using Texts = std::vector<std::string>;

TEST(TextCorpus, FindsSentences) {
  EXPECT_EQ(sentences("One two. Three? \"Four five!\" (Six.) Seven"),
            (Texts{"One two. ", "Three? ", "\"Four five!\" ", "(Six.) ", "Seven"}));
  EXPECT_EQ(sentences("A title\n\nIt begins. And\ngoes on."),
            (Texts{"A title\n\n", "It begins. ", "And\ngoes on."}));
  EXPECT_EQ(sentences("Dr. Li paid 3.50 to J. Roe, cf. Note 2. He left."),
            (Texts{"Dr. Li paid 3.50 to J. Roe, cf. Note 2. ", "He left."}));
  EXPECT_EQ(sentences("It ended ... and went on. Then more."),
            (Texts{"It ended ... and went on. ", "Then more."}));
  // Two ideographic sentences, and a curly quote that closes one.
  EXPECT_EQ(sentences("\xE4\xB8\x80\xE3\x80\x82\xE4\xBA\x8C\xE3\x80\x82"
                      "\xE2\x80\x9CIt is.\xE2\x80\x9D Yes."),
            (Texts{"\xE4\xB8\x80\xE3\x80\x82", "\xE4\xBA\x8C\xE3\x80\x82",
                   "\xE2\x80\x9CIt is.\xE2\x80\x9D ", "Yes."}));
  EXPECT_EQ(sentences("no end at all"), Texts{"no end at all"});
}

TEST(TextCorpus, GivesTheNearestSentence) {
  const TextCorpus text("Abcdefgh. Ijklmnop. Qrstuvwx.", " ");  // 0, 10, 20, 30 ...
  EXPECT_EQ(text.sentence_start(4, 100), 0u);
  EXPECT_EQ(text.sentence_start(5, 100), 0u);  // as near to both: the earlier
  EXPECT_EQ(text.sentence_start(6, 100), 10u);
  EXPECT_EQ(text.sentence_start(29, 100), 30u);  // the text again
  EXPECT_EQ(text.sentence_start(29, 29), 20u);
  EXPECT_EQ(text.sentence_start(74, 100), 70u);
}

TEST(TextCorpus, RepeatsWithoutEnd) {
  const TextCorpus text(" \n Ab c.\n", "\n\n");
  EXPECT_EQ(text.head(17), "Ab c.\n\nAb c.\n\nAb ");
  EXPECT_EQ(text.head(0), "");
  EXPECT_TRUE(text.contains("b c"));
  EXPECT_FALSE(text.contains("c.\n\nA"));
}

TEST(TextCorpus, CutsWhereWordsBegin) {
  const TextCorpus text("Ab  cde f", " ");  // words at 0, 4, 8, 10, 14 ...
  const std::size_t expected[] = {0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 10, 10, 10, 10, 14, 14};
  for (std::size_t size = 0; size < 16; ++size)
    EXPECT_EQ(text.word_cut(size), expected[size]) << size;
}

TEST(TextCorpus, CutsLongWordsBetweenCharacters) {
  std::string word = "x";
  for (int i = 0; i < 100; ++i) word += "\xE4\xB8\x80";
  const TextCorpus text(word, " ");
  std::size_t last = 0;
  std::size_t n_cuts = 0;
  for (std::size_t size = 0; size < 1000; ++size) {
    const std::size_t cut = text.word_cut(size);
    ASSERT_GE(cut, last);
    ASSERT_LE(cut, size);
    if (cut != last) ++n_cuts;
    last = cut;
    const std::size_t in_text = cut % (word.size() + 1);
    EXPECT_TRUE(in_text == 0 || in_text % 3 == 1) << size;  // where a character begins or ends
  }
  EXPECT_GT(n_cuts, 200u);
}

TEST(TextCorpus, ReplacesWhatIsNotUtf8) {
  EXPECT_EQ(TextCorpus("a \xFF\xC3", " ").head(8), "a \xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(TextCorpus("\x80 a", " ").head(4), "\xEF\xBF\xBD ");
}

TEST(TextCorpus, KnowsTextWithoutWords) {
  EXPECT_FALSE(has_words(""));
  EXPECT_FALSE(has_words(" \t\r\n\v\f"));
  EXPECT_TRUE(has_words(" \n."));
}

}  // namespace
}  // namespace precis
