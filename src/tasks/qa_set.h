// Questions about paragraphs, read from files that the user brings: none come with Precis.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace precis {

struct QaItem {
  std::string question;
  std::vector<std::string> answers;  // distinct, at least one
  std::vector<std::size_t> golden;   // documents that the answer follows from, at least one
  std::size_t group = 0;
};

struct QaSet {
  std::vector<std::string> documents;            // distinct
  std::vector<std::vector<std::size_t>> groups;  // documents that come together, e.g. one article
  std::vector<QaItem> items;
};

// SQuAD's format, versions 1.1 and 2.0: {"data": [{"paragraphs": [{"context", "qas": [{"question",
// "answers": [{"text"}]}]}]}]}. An article is a group. Questions without an answer are left out.
// Both throw Error(kFormat) that names the place and what is missing or of the wrong type there,
// for nesting deeper than 32, and where no question is left. All other fields are ignored.
QaSet parse_squad(std::string_view json_text);
// HotpotQA's format: [{"question", "answer", "context": [[title, [sentence ...]] ...],
// "supporting_facts": [[title, number] ...]}]. The paragraphs of a question are a group; golden are
// those that supporting facts name. Questions whose facts are not all among their paragraphs are
// left out.
QaSet parse_hotpot(std::string_view json_text);

}  // namespace precis
