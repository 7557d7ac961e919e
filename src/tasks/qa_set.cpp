#include "tasks/qa_set.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/error.h"
#include "tasks/text_corpus.h"

namespace precis {
namespace {

using Json = nlohmann::json;

constexpr int kDeepest = 32;

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorCode::kFormat, what); }

// A value and the way to it, which is put into words only when something is wrong there.
class Place {
 public:
  Place(const Json& value, const char* file) : value_(value), name_(file) {}

  Place at(const char* name) const {
    if (!value_.is_object()) wrong("an object");
    const auto found = value_.find(name);
    if (found == value_.end()) refuse(concat(path(), ": field '", name, "' is missing"));
    return Place(*found, this, name, 0);
  }
  Place at(std::size_t index) const {
    const std::size_t n = size();
    if (index >= n) refuse(concat(path(), ": has ", n, " items, ", index + 1, " are needed"));
    return Place(value_[index], this, nullptr, index);
  }
  std::size_t size() const {
    if (!value_.is_array()) wrong("a list");
    return value_.size();
  }
  const std::string& text() const {
    if (!value_.is_string()) wrong("a text");
    return value_.get_ref<const std::string&>();
  }
  // A text that says something.
  const std::string& words() const {
    if (!has_words(text())) refuse(concat(path(), ": the text is empty"));
    return text();
  }

 private:
  Place(const Json& value, const Place* parent, const char* name, std::size_t index)
      : value_(value), parent_(parent), name_(name), index_(index) {}
  [[noreturn]] void wrong(const char* wanted) const { refuse(concat(path(), ": is not ", wanted)); }
  std::string path() const {
    if (parent_ == nullptr) return name_;
    const bool is_first = parent_->parent_ == nullptr;
    if (name_ == nullptr) return concat(parent_->path(), is_first ? ": [" : "[", index_, "]");
    return concat(parent_->path(), is_first ? ": " : ".", name_);
  }

  const Json& value_;
  const Place* parent_ = nullptr;
  const char* name_;
  std::size_t index_ = 0;
};

Json parse(std::string_view text, const char* file) {
  const auto check_depth = [file](int depth, Json::parse_event_t, Json&) {
    if (depth > kDeepest) refuse(concat(file, ": nested more than ", kDeepest, " deep"));
    return true;
  };
  try {
    return Json::parse(text, check_depth);
  } catch (const Json::parse_error& e) {
    refuse(concat(file, ": not JSON, at byte ", e.byte));
  } catch (const Json::exception&) {  // a number that no double holds
    refuse(concat(file, ": not JSON that can be read"));
  }
}

// Collects a set, each document once.
class Collector {
 public:
  std::size_t document(const std::string& text) {
    const auto [found, is_new] = known_.emplace(text, set_.documents.size());
    if (is_new) set_.documents.push_back(text);
    return found->second;
  }
  static void add_once(std::vector<std::size_t>& to, std::size_t document) {
    if (std::find(to.begin(), to.end(), document) == to.end()) to.push_back(document);
  }
  void group(std::vector<std::size_t> documents) {
    std::sort(documents.begin(), documents.end());
    documents.erase(std::unique(documents.begin(), documents.end()), documents.end());
    set_.groups.push_back(std::move(documents));
  }
  // Of the group that is being collected.
  void item(const std::string& question, std::vector<std::string> answers,
            std::vector<std::size_t> golden) {
    set_.items.push_back({question, std::move(answers), std::move(golden), set_.groups.size()});
  }
  QaSet finish(const char* file) {
    if (set_.items.empty()) refuse(concat(file, ": has no question with an answer"));
    return std::move(set_);
  }

 private:
  QaSet set_;
  std::unordered_map<std::string, std::size_t> known_;
};

std::vector<std::string> squad_answers(const Place& answers) {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const Place answer = answers.at(i);
    const Place text = answer.at("text");
    if (!text.text().empty() && std::find(out.begin(), out.end(), text.text()) == out.end())
      out.push_back(text.text());
  }
  return out;
}

void collect_paragraph(const Place& paragraph, Collector& to, std::vector<std::size_t>& group) {
  const Place context = paragraph.at("context");
  const Place questions = paragraph.at("qas");
  const std::size_t document = to.document(context.words());
  group.push_back(document);
  for (std::size_t q = 0; q < questions.size(); ++q) {
    const Place item = questions.at(q);
    const Place question = item.at("question");
    std::vector<std::string> answers = squad_answers(item.at("answers"));
    if (!answers.empty()) to.item(question.words(), std::move(answers), {document});
  }
}

void collect_hotpot(const Place& item, Collector& to) {
  const Place question = item.at("question");
  const Place answer = item.at("answer");
  const Place paragraphs = item.at("context");
  const Place facts = item.at("supporting_facts");
  std::vector<std::size_t> group;
  std::unordered_map<std::string, std::size_t> by_title;
  for (std::size_t p = 0; p < paragraphs.size(); ++p) {
    const Place paragraph = paragraphs.at(p);
    const Place title = paragraph.at(std::size_t{0});
    const Place sentences = paragraph.at(std::size_t{1});
    std::string text = title.words() + "\n";
    for (std::size_t s = 0; s < sentences.size(); ++s) text += sentences.at(s).text();
    group.push_back(to.document(text));
    by_title.emplace(title.text(), group.back());
  }
  std::vector<std::size_t> golden;
  bool complete = facts.size() > 0;
  for (std::size_t f = 0; f < facts.size(); ++f) {
    const Place fact = facts.at(f);
    const auto found = by_title.find(fact.at(std::size_t{0}).text());
    complete = complete && found != by_title.end();
    if (found != by_title.end()) Collector::add_once(golden, found->second);
  }
  if (complete) to.item(question.words(), {answer.words()}, std::move(golden));
  to.group(std::move(group));
}

}  // namespace

QaSet parse_squad(std::string_view json_text) {
  constexpr const char* kFile = "QA file in SQuAD's format";
  const Json json = parse(json_text, kFile);
  const Place root(json, kFile);
  const Place articles = root.at("data");
  Collector to;
  for (std::size_t a = 0; a < articles.size(); ++a) {
    const Place article = articles.at(a);
    const Place paragraphs = article.at("paragraphs");
    std::vector<std::size_t> group;
    for (std::size_t p = 0; p < paragraphs.size(); ++p)
      collect_paragraph(paragraphs.at(p), to, group);
    to.group(std::move(group));
  }
  return to.finish(kFile);
}

QaSet parse_hotpot(std::string_view json_text) {
  constexpr const char* kFile = "QA file in HotpotQA's format";
  const Json json = parse(json_text, kFile);
  const Place items(json, kFile);
  Collector to;
  for (std::size_t i = 0; i < items.size(); ++i) collect_hotpot(items.at(i), to);
  return to.finish(kFile);
}

}  // namespace precis
