#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "tasks/random_source.h"
#include "tasks/ruler_drafts.h"

namespace precis {
namespace {

constexpr std::size_t kTries = 20;

constexpr const char* kBegin =
    "Below are some documents. Answer the question that follows them from what they say, as "
    "briefly as you can.\n\n";

// Items whose golden documents take about half of the length at most, as far as bytes tell, in an
// order that only the seed decides: different indices ask different questions while there are any.
std::vector<std::size_t> item_order(const QaSet& set, const RulerRequest& request) {
  std::vector<std::size_t> out;
  for (std::size_t i = 0; i < set.items.size(); ++i) {
    const QaItem& item = set.items[i];
    if (item.golden.size() >= set.documents.size()) continue;
    std::size_t n_bytes = item.question.size();
    for (const std::size_t document : item.golden) n_bytes += set.documents[document].size();
    if (n_bytes <= request.length * 2) out.push_back(i);
  }
  RandomSource random(request.seed, concat(request.task, " order"), 0);
  random.shuffle(out);
  return out;
}

// Endless documents that do not hold the answer: first those of the item's own group, then all
// others, then the same again.
class Distractors {
 public:
  Distractors(const QaSet& set, const QaItem& item, RandomSource random) : set_(set) {
    std::vector<bool> is_taken(set.documents.size());
    for (const std::size_t document : item.golden) is_taken[document] = true;
    for (const std::size_t document : set.groups[item.group]) {
      if (is_taken[document]) continue;
      is_taken[document] = true;
      order_.push_back(document);
    }
    random.shuffle(order_);
    std::vector<std::size_t> others;
    for (std::size_t i = 0; i < is_taken.size(); ++i)
      if (!is_taken[i]) others.push_back(i);
    random.shuffle(others);
    order_.insert(order_.end(), others.begin(), others.end());
  }
  const std::string& at(std::size_t i) const { return set_.documents[order_[i % order_.size()]]; }

 private:
  const QaSet& set_;
  std::vector<std::size_t> order_;
};

// The first words of a text, of at most `size` bytes.
std::string first_words(const std::string& text, std::size_t size) {
  const TextCorpus corpus(text, "\n");
  std::string out = corpus.head(corpus.word_cut(size));
  out.resize(out.find_last_not_of(" \t\n\r\v\f") + 1);
  return out;
}

// Distractors of `size` bytes together; the last is cut.
std::vector<std::string> fill(const Distractors& distractors, std::size_t size) {
  std::vector<std::string> out;
  for (std::size_t i = 0; size > 0; ++i) {
    const std::string& text = distractors.at(i);
    if (text.size() > size) {
      std::string part = first_words(text, size);
      if (!part.empty()) out.push_back(std::move(part));
      break;
    }
    out.push_back(text);
    size -= text.size();
  }
  return out;
}

}  // namespace

std::optional<SampleDraft> draft_documents(const RulerRequest& request, std::size_t attempt) {
  const QaSet& set = request.task == "qa_1" ? request.materials.squad : request.materials.hotpot;
  if (attempt >= kTries) return {};
  const std::vector<std::size_t> order = item_order(set, request);
  if (order.empty()) {
    if (attempt > 0) return {};
    throw Error(ErrorCode::kInvalidArgument,
                concat("task '", request.task, "': none of the ", set.items.size(),
                       " questions has its documents in half of ", request.length,
                       " tokens and others beside them; ask for longer samples or bring more "
                       "questions"));
  }
  if (attempt >= order.size()) return {};
  const QaItem& item = set.items[order[(request.index % order.size() + attempt) % order.size()]];
  RandomSource random(request.seed, request.task, request.index);
  std::vector<std::pair<std::uint64_t, const std::string*>> golden;
  for (const std::size_t document : item.golden)
    golden.emplace_back(random.below(kFullDepth), &set.documents[document]);
  const auto distractors = std::make_shared<const Distractors>(set, item, std::move(random));

  SampleDraft out;
  out.probe = 2048;
  out.question.text = concat("Question: ", item.question, "\n");
  out.question.answer_prefix = "Answer:";
  out.question.references = item.answers;
  out.context = [distractors, golden](std::size_t size, std::size_t filler) {
    std::vector<std::string> documents = fill(*distractors, size);
    for (const auto& [depth, text] : golden) {
      const std::size_t place = ((documents.size() + 1) * depth) >> 32;
      documents.insert(documents.begin() + static_cast<std::ptrdiff_t>(place), *text);
    }
    std::string text = kBegin;
    for (std::size_t i = 0; i < documents.size(); ++i)
      text.append(i > 0 ? "\n\n" : "").append(concat("Document ", i + 1, ":\n", documents[i]));
    return text + filler_line(filler) + "\n\n";
  };
  return out;
}

}  // namespace precis
