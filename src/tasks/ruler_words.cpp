#include <algorithm>
#include <array>
#include <memory>
#include <unordered_set>

#include "base/error.h"
#include "tasks/random_source.h"
#include "tasks/ruler_drafts.h"
#include "tasks/word_list.h"

namespace precis {
namespace {

// ---- Common words: a few words of a numbered list occur more often than the others.

constexpr std::size_t kCommon = 10;
constexpr std::size_t kExampleRare = 10;

struct Occurrences {
  std::size_t from_length;  // tokens from which this is tried first
  std::size_t common;
  std::size_t rare;
};
// The first two are RULER's. It has none for texts that 60 entries fill.
constexpr std::array<Occurrences, 3> kOccurrences = {{{4096, 30, 3}, {1024, 6, 1}, {0, 3, 1}}};

constexpr const char* kCommonBegin =
    "Below is a numbered list of words, most of them several times. Keep in mind which ones appear "
    "most often.\n\n";

constexpr const char* kExampleBegin = "First an example with a short list.\n\n";
constexpr const char* kExampleEnd = ".\n\nNow the list that you will be asked about.\n\n";

TaskQuestion common_question(std::vector<std::string> words) {
  TaskQuestion out;
  out.text = concat("Which ", kCommon, " words appear most often in the list above?\n");
  out.answer_prefix = concat("The ", kCommon, " words that appear most often in the list are:");
  out.references = std::move(words);
  return out;
}

std::string numbered(const std::vector<const std::string*>& entries) {
  std::string out;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (i > 0) out.append(" ");
    out.append(std::to_string(i + 1)).append(". ").append(*entries[i]);
  }
  return out;
}

// The common words and, without end in sight, others: single words as long as there are any, then
// pairs. No other word contains a common one, and so does none of our own wording: an answer
// contains a common word only where it means it.
class WordSource {
 public:
  explicit WordSource(RandomSource random) : random_(std::move(random)) {
    std::vector<std::string> words = plain_nouns();
    words.insert(words.end(), plain_adjectives().begin(), plain_adjectives().end());
    random_.shuffle(words);
    const TaskQuestion question = common_question({});
    const std::string wording = concat(kCommonBegin, question.text, question.answer_prefix,
                                       kExampleBegin, kExampleEnd, filler_line(24));
    for (const std::string& word : words) {
      const bool is_unlike = std::none_of(common.begin(), common.end(), [&](const auto& other) {
        return other.find(word) != std::string::npos || word.find(other) != std::string::npos;
      });
      if (common.size() < kCommon && is_unlike && wording.find(word) == std::string::npos)
        common.push_back(word);
      else
        others_.push_back(word);
    }
    std::erase_if(others_, [this](const std::string& word) { return contains_common(word); });
    n_singles_ = others_.size();
  }

  // As many as can be asked for: a quarter of the pairs stays unused, so that a draw soon finds a
  // new one.
  std::size_t most() const {
    return n_singles_ + plain_adjectives().size() * plain_nouns().size() / 4 * 3;
  }
  void prepare(std::size_t n) {
    while (others_.size() < n) {
      std::string pair = random_.pick(plain_adjectives()) + "-";
      pair += random_.pick(plain_nouns());
      if (!contains_common(pair) && pairs_.insert(pair).second) others_.push_back(pair);
    }
  }
  // REQUIRES: prepare(i + 1). Moves when more are prepared.
  const std::string& other(std::size_t i) const { return others_[i]; }

  std::vector<std::string> common;

 private:
  bool contains_common(const std::string& word) const {
    return std::any_of(common.begin(), common.end(),
                       [&](const auto& c) { return word.find(c) != std::string::npos; });
  }

  RandomSource random_;
  std::vector<std::string> others_;
  std::unordered_set<std::string> pairs_;
  std::size_t n_singles_ = 0;
};

// kCommon words three times each among as many others.
std::string common_example(const WordSource& words, RandomSource& random) {
  std::vector<const std::string*> entries;
  std::vector<std::string> answer;
  for (std::size_t i = 0; i < kCommon; ++i) {
    entries.insert(entries.end(), 3, &words.other(i));
    answer.push_back(words.other(i));
  }
  for (std::size_t i = kCommon; i < kCommon + kExampleRare; ++i) entries.push_back(&words.other(i));
  random.shuffle(entries);
  const TaskQuestion question = common_question(answer);
  return concat(kExampleBegin, numbered(entries), "\n\n", question.text, question.answer_prefix,
                " ", listed(answer), kExampleEnd);
}

// ---- Frequent words: coded words whose frequencies fall as 1 / rank^2.

constexpr std::size_t kCodedLetters = 6;
constexpr std::size_t kAnswers = 3;
constexpr const char* kDots = "...";

constexpr const char* kFrequentBegin =
    "Below is a text in code. Leave out the dots and keep in mind which coded words come up most "
    "often.\n\n";

// How often the word of this rank, from 1, comes up among n: n / (rank^2 zeta(2)), rounded down.
std::size_t zeta_count(std::size_t n, std::size_t rank) {
  constexpr std::uint64_t kMillionthsOfFirst = 607'927;  // 6 / pi^2
  return static_cast<std::size_t>(n * kMillionthsOfFirst / (rank * rank * 1'000'000));
}

class CodedWords {
 public:
  explicit CodedWords(RandomSource random) : random_(std::move(random)) {}

  // The word of this rank among coded words, from 0.
  const std::string& at(std::size_t rank) {
    while (words_.size() <= rank) {
      std::string word;
      for (std::size_t i = 0; i < kCodedLetters; ++i)
        word.push_back(static_cast<char>('a' + random_.below(26)));
      if (wording_.find(word) == std::string::npos && used_.insert(word).second)
        words_.push_back(word);
    }
    return words_[rank];
  }
  void set_wording(std::string wording) { wording_ = std::move(wording); }

 private:
  RandomSource random_;
  std::string wording_;
  std::vector<std::string> words_;
  std::unordered_set<std::string> used_;
};

}  // namespace

std::optional<SampleDraft> draft_common_words(const RulerRequest& request, std::size_t attempt) {
  std::size_t first = 0;
  while (request.length < kOccurrences[first].from_length) ++first;
  if (first + attempt >= kOccurrences.size()) return {};
  const Occurrences times = kOccurrences[first + attempt];
  RandomSource random(request.seed, request.task, request.index);
  const std::uint64_t order = random.bits();
  const auto words = std::make_shared<WordSource>(RandomSource(random.bits()));
  const std::size_t n_example = kCommon + kExampleRare;
  words->prepare(n_example);
  const std::string example = common_example(*words, random);
  std::string begin = kCommonBegin;
  if (request.codec.count(example) * 5 < request.length) begin += example;

  SampleDraft out;
  out.question = common_question(words->common);
  out.least = kCommon * times.common + kCommon * times.rare;
  out.most = kCommon * times.common + (words->most() - n_example) * times.rare;
  out.probe = 100;
  out.context = [=](std::size_t n_entries, std::size_t filler) {
    const std::size_t n_rare = n_entries - kCommon * times.common;
    words->prepare(n_example + n_rare / times.rare + 1);
    std::vector<const std::string*> entries;
    for (const std::string& word : words->common)
      entries.insert(entries.end(), times.common, &word);
    for (std::size_t i = 0; i < n_rare; ++i)
      entries.push_back(&words->other(n_example + i / times.rare));
    RandomSource(order).shuffle(entries);
    return begin + numbered(entries) + filler_line(filler) + "\n\n";
  };
  return out;
}

std::optional<SampleDraft> draft_frequent_words(const RulerRequest& request, std::size_t attempt) {
  if (attempt > 0) return {};
  RandomSource random(request.seed, request.task, request.index);
  const std::uint64_t order = random.bits();
  const auto words = std::make_shared<CodedWords>(RandomSource(random.bits()));
  SampleDraft out;
  out.question.text =
      concat("Which ", kAnswers, " coded words come up most often in the text above?\n");
  out.question.answer_prefix =
      concat("The ", kAnswers, " coded words that come up most often in the text are:");
  words->set_wording(kFrequentBegin + out.question.text + out.question.answer_prefix);
  for (std::size_t i = 0; i < kAnswers; ++i) out.question.references.push_back(words->at(i));
  // From here on the counts of any two of the first five ranks differ.
  out.least = 80;
  out.probe = 200;
  out.context = [=](std::size_t n, std::size_t filler) {
    const std::string dots = kDots;
    // Rank 1 are the dots, and so is the filler: more of them change no answer.
    std::vector<const std::string*> text(zeta_count(n, 1) + filler, &dots);
    for (std::size_t rank = 2; zeta_count(n, rank) > 0; ++rank) words->at(rank - 2);
    for (std::size_t rank = 2; zeta_count(n, rank) > 0; ++rank)
      text.insert(text.end(), zeta_count(n, rank), &words->at(rank - 2));
    RandomSource(order).shuffle(text);
    std::string joined;
    for (std::size_t i = 0; i < text.size(); ++i) joined.append(i > 0 ? " " : "").append(*text[i]);
    return kFrequentBegin + joined + "\n\n";
  };
  return out;
}

}  // namespace precis
