#include "tasks/metrics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "tasks/answer_text.h"
#include "tasks/subsequence.h"

namespace precis {
namespace {

using Words = std::vector<std::u32string>;

std::string_view without_leading_breaks(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  return text;
}

std::u32string_view trimmed(std::u32string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

// Knuth, Morris and Pratt's search: linear time whatever the texts, where find() and the standard
// library's searchers take the product of lengths at worst.
template <class Text>
bool contains(const Text& text, const Text& part) {
  // border[i]: length of the longest proper end of part's first i + 1 that is also its beginning.
  std::vector<std::size_t> border(part.size(), 0);
  const auto longest_with = [&](std::size_t n, auto c) {
    while (n > 0 && part[n] != c) n = border[n - 1];
    return part[n] == c ? n + 1 : 0;
  };
  if (part.empty()) return true;
  for (std::size_t i = 1; i < part.size(); ++i) border[i] = longest_with(border[i - 1], part[i]);
  std::size_t n = 0;
  for (const auto c : text) {
    n = longest_with(n, c);
    if (n == part.size()) return true;
  }
  return false;
}

// Number of references that occur in the answer.
std::size_t count_contained(const std::vector<std::string>& references, std::string_view answer) {
  std::u32string text = lower_case(code_points(answer));
  for (char32_t& c : text)
    if (c < 0x20) c = U'\n';
  const std::u32string_view whole = trimmed(text);
  return static_cast<std::size_t>(
      std::count_if(references.begin(), references.end(), [&](const std::string& reference) {
        const std::u32string part = lower_case(code_points(reference));
        return contains(whole, std::u32string_view(part));
      }));
}

double f_of_words(const Words& answer, const Words& reference) {
  std::unordered_map<std::u32string_view, std::size_t> left;
  for (const std::u32string& word : reference) ++left[word];
  std::size_t n_shared = 0;
  for (const std::u32string& word : answer) {
    const auto found = left.find(word);
    if (found == left.end() || found->second == 0) continue;
    --found->second;
    ++n_shared;
  }
  if (n_shared == 0) return 0;
  return 2.0 * static_cast<double>(n_shared) /
         static_cast<double>(answer.size() + reference.size());
}

// The sentences of a text for ROUGE-L, as numbers of words; equal words have equal numbers.
class SentenceReader {
 public:
  using Sentences = std::vector<std::vector<std::uint32_t>>;

  // At most kMostRougeWords words; those after them are as if they were not there.
  Sentences read(std::u32string_view text) {
    Sentences out;
    std::size_t n_left = kMostRougeWords;
    for (std::size_t i = 0; i <= text.size() && n_left > 0;) {
      const std::size_t end = std::min(text.find(U'.', i), text.size());
      if (end > i) {
        Words words = split_words(text.substr(i, end - i));
        if (words.empty()) words.emplace_back();
        words.resize(std::min(words.size(), n_left));
        n_left -= words.size();
        out.emplace_back();
        for (std::u32string& word : words) out.back().push_back(number_of(std::move(word)));
      }
      i = end + 1;
    }
    return out;
  }
  std::size_t n_words() const { return numbers_.size(); }

 private:
  std::uint32_t number_of(std::u32string word) {
    const auto next = static_cast<std::uint32_t>(numbers_.size());
    return numbers_.emplace(std::move(word), next).first->second;
  }
  std::unordered_map<std::u32string, std::uint32_t> numbers_;
};

double count_different(const SentenceReader::Sentences& sentences) {
  std::set<std::uint32_t> seen;
  for (const auto& words : sentences) seen.insert(words.begin(), words.end());
  return static_cast<double>(seen.size());
}

double rouge_l(std::u32string_view answer, std::u32string_view reference) {
  SentenceReader reader;
  const auto answered = reader.read(answer);
  const auto wanted = reader.read(reference);
  if (answered.empty() || wanted.empty()) return 0;
  std::vector<bool> shared(reader.n_words(), false);
  CommonWords common;
  for (const auto& sentence : wanted)
    for (const auto& other : answered)
      for (const std::uint32_t word : common.find(sentence, other)) shared[word] = true;
  const auto n_shared = static_cast<double>(std::count(shared.begin(), shared.end(), true));
  const double recall = n_shared / count_different(wanted);
  const double precision = n_shared / count_different(answered);
  return 2.0 * (precision * recall / (precision + recall + 1e-8));
}

double classification(const std::vector<std::string>& classes, std::string_view answer,
                      std::string_view reference) {
  std::size_t n_found = 0;
  bool is_found = false;
  for (const std::string& name : classes) {
    if (!contains(answer, std::string_view(name))) continue;
    if (name == reference) {
      is_found = true;
    } else if (contains(reference, std::string_view(name))) {
      continue;
    }
    ++n_found;
  }
  return is_found ? 1.0 / static_cast<double>(n_found) : 0.0;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string_view leading_number(std::string_view text) {
  const auto end = std::find_if_not(text.begin(), text.end(), is_digit);
  return text.substr(0, static_cast<std::size_t>(end - text.begin()));
}

double share_of_numbers(std::string_view answer, std::string_view wanted) {
  std::size_t n = 0;
  std::size_t n_right = 0;
  while (!answer.empty()) {
    const std::string_view number = leading_number(answer);
    if (!number.empty()) {
      ++n;
      if (number == wanted) ++n_right;
    }
    answer.remove_prefix(std::max<std::size_t>(number.size(), 1));
  }
  return n == 0 ? 0.0 : static_cast<double>(n_right) / static_cast<double>(n);
}

// The N of the first "Paragraph N"; empty if there is none.
std::string_view paragraph_number(std::string_view reference) {
  constexpr std::string_view kWord = "Paragraph ";
  for (std::size_t i = reference.find(kWord); i != std::string_view::npos;
       i = reference.find(kWord, i + 1)) {
    const std::string_view number = leading_number(reference.substr(i + kWord.size()));
    if (!number.empty()) return number;
  }
  return {};
}

// The first line that is neither a comment nor the fence of a block of code.
std::string_view code_line(std::string_view answer) {
  answer = without_leading_breaks(answer);
  while (true) {
    const std::string_view line = answer.substr(0, answer.find('\n'));
    if (line.find_first_of("`#") == std::string_view::npos &&
        line.find("//") == std::string_view::npos)
      return line;
    if (line.size() == answer.size()) return {};
    answer.remove_prefix(line.size() + 1);
  }
}

double edit_similarity(std::string_view answer, std::string_view reference) {
  const std::u32string a = code_points(answer).substr(0, kMostEditCharacters);
  const std::u32string b = code_points(reference).substr(0, kMostEditCharacters);
  if (a.empty() && b.empty()) return 1;
  const auto n = static_cast<double>(a.size() + b.size());
  // Written as RapidFuzz does: 2 L / n rounds otherwise, and half a percent may go the other way.
  const double ratio = 1.0 - (n - 2.0 * static_cast<double>(common_length(a, b))) / n;
  // std::nearbyint in the usual mode rounds halves to even, as Python does; but that mode is the
  // process's, so it is done by hand.
  const double below = std::floor(100 * ratio);
  const double rest = 100 * ratio - below;
  const bool up = rest > 0.5 || (rest == 0.5 && std::fmod(below, 2) == 1);
  return (up ? below + 1 : below) / 100;
}

// The first line that is not white space alone; empty if there is none.
std::u32string first_line_of(std::string_view answer) {
  while (!answer.empty()) {
    const std::string_view line = answer.substr(0, answer.find('\n'));
    const std::u32string text = code_points(line);
    if (const std::u32string_view bare = trimmed(text); !bare.empty()) return std::u32string(bare);
    answer.remove_prefix(std::min(line.size() + 1, answer.size()));
  }
  return {};
}

Words words_of_list(std::u32string_view text) {
  std::u32string spaced(text);
  for (char32_t& c : spaced)
    if (c == U',' || c == U';' || c == U'|') c = U' ';
  Words words = normal_words(spaced);
  std::erase(words, U"and");
  return words;
}

// Whether `line` is made of all of `references`, each once.
bool is_exact_list(const Words& line, const std::vector<std::string>& references) {
  std::vector<Words> left;
  for (const std::string& reference : references) {
    left.push_back(words_of_list(code_points(reference)));
    if (left.back().empty()) return false;
  }
  std::stable_sort(left.begin(), left.end(),
                   [](const Words& a, const Words& b) { return a.size() > b.size(); });
  for (auto at = line.begin(); at != line.end();) {
    const auto fits = std::find_if(left.begin(), left.end(), [&](const Words& words) {
      return words.size() <= static_cast<std::size_t>(line.end() - at) &&
             std::equal(words.begin(), words.end(), at);
    });
    if (fits == left.end()) return false;
    at += static_cast<std::ptrdiff_t>(fits->size());
    left.erase(fits);
  }
  return left.empty();
}

double score_for(Metric metric, const TaskQuestion& question, std::string_view answer,
                 std::string_view reference) {
  switch (metric) {
    case Metric::kF1:
      return f_of_words(normal_words(code_points(answer)), normal_words(code_points(reference)));
    case Metric::kRougeL:
      return rouge_l(code_points(answer), code_points(reference));
    case Metric::kClassification:
      return classification(question.classes, answer, reference);
    case Metric::kCount:
      return share_of_numbers(answer, reference);
    case Metric::kRetrieval:
      return share_of_numbers(answer, paragraph_number(reference));
    case Metric::kEditSimilarity:
      return edit_similarity(code_line(answer), reference);
    case Metric::kContainAll:
    case Metric::kContainAny:
      break;
  }
  PRECIS_CHECK(false, static_cast<int>(metric));
}

}  // namespace

double score_answer(const TaskRule& rule, const TaskQuestion& question, std::string_view answer) {
  const std::vector<std::string>& references = question.references;
  if (references.empty()) return 0;
  if (rule.first_line_only) {
    answer = without_leading_breaks(answer);
    answer = answer.substr(0, answer.find('\n'));
  }
  if (rule.metric == Metric::kContainAll || rule.metric == Metric::kContainAny) {
    const std::size_t n = count_contained(references, answer);
    if (rule.metric == Metric::kContainAny) return n > 0 ? 1 : 0;
    return static_cast<double>(n) / static_cast<double>(references.size());
  }
  double best = 0;
  for (const std::string& reference : references)
    best = std::max(best, score_for(rule.metric, question, answer, reference));
  return best;
}

bool is_exact(const TaskRule& rule, const TaskQuestion& question, std::string_view answer) {
  const std::vector<std::string>& references = question.references;
  if (references.empty()) return false;
  const bool is_code = rule.metric == Metric::kEditSimilarity;
  const std::u32string line = first_line_of(is_code ? code_line(answer) : answer);
  if (line.empty()) return false;
  if (rule.metric == Metric::kContainAll) return is_exact_list(words_of_list(line), references);
  const Words words = normal_words(line);
  return std::any_of(references.begin(), references.end(), [&](const std::string& reference) {
    const std::u32string text = code_points(reference);
    const Words wanted = is_code ? Words() : normal_words(text);
    return wanted.empty() ? trimmed(text) == line : words == wanted;
  });
}

}  // namespace precis
