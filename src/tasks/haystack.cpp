#include <algorithm>
#include <utility>

#include "tasks/ruler_drafts.h"

namespace precis {

const TextCorpus& noise_text() {
  static const TextCorpus text(
      "The kettle is on the stove. The window is half open. A clock ticks in the hall. "
      "Rain falls on the roof. Nobody is in a hurry today.",
      " ");
  return text;
}

TextCorpus essay_text(const std::string& essay, std::size_t length) {
  std::string_view text = essay;
  text.remove_prefix(std::min(text.find_first_not_of(" \t\n\r\v\f"), text.size()));
  const std::size_t most = std::max<std::size_t>(length, 64) * 64;
  if (text.size() > most) {
    // Not within a character, which has at most three bytes after its first.
    std::size_t end = most;
    while (end > most - 3 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
    text = text.substr(0, end);
  }
  return TextCorpus(text, "\n\n");
}

std::string haystack(const TextCorpus& text, std::size_t size,
                     const std::vector<HaystackInsert>& inserts) {
  const std::size_t cut = text.word_cut(size);
  std::vector<std::pair<std::size_t, const std::string*>> places;
  for (const HaystackInsert& insert : inserts)
    places.emplace_back(text.sentence_start((cut * insert.depth) >> 32, cut), &insert.text);
  std::stable_sort(places.begin(), places.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  const std::string head = text.head(cut);
  std::string out;
  std::size_t done = 0;
  for (const auto& [place, sentence] : places) {
    out.append(head, done, place - done);
    out.append(*sentence).append(" ");
    done = place;
  }
  out.append(head, done);
  out.resize(out.find_last_not_of(" \t\n\r\v\f") + 1);
  return out;
}

std::string listed(const std::vector<std::string>& words) {
  std::string out;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i > 0) out.append(i + 1 == words.size() ? " and " : ", ");
    out.append(words[i]);
  }
  return out;
}

}  // namespace precis
