#include "tasks/longbench_prompts.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "tasks/longbench.h"

namespace precis {
namespace {

struct Wording {
  const char* task;
  const char* text;
};

// LongBench's order of parts: what to do, the document, what to do once more where the document is
// long prose, the question, how the answer begins. The few-shot tasks and code go without a
// template and end where the model has to go on, so their cue is in the data.
constexpr auto kWordings = std::to_array<Wording>({
    {"narrativeqa",
     "Read this story, a book or the script of a film. You will be asked about it and are to reply "
     "in as few words as you can.\n\nStory:\n{context}\n\nThat was the story. Reply to the "
     "question in as few words as you can and add no reasons.\n\nQuestion: {input}\nAnswer:"},
    {"qasper",
     "Read this scientific paper. You will be asked about it. Reply with one phrase or sentence; "
     "with \"yes\" or \"no\" where that is asked; and with \"unanswerable\" if the paper does not "
     "say.\n\nPaper:\n{context}\n\nThat was the paper. Reply to the question with one phrase or "
     "sentence, with \"yes\" or \"no\", or with \"unanswerable\", and add no reasons.\n\nQuestion: "
     "{input}\nAnswer:"},
    {"multifieldqa_en",
     "Here is a document.\n\n{context}\n\nReply to the question from what the document says. Be "
     "brief and write only the answer.\n\nQuestion: {input}\nAnswer:"},
    {"hotpotqa",
     "Some of these passages, taken together, answer a question that comes after them.\n\n"
     "{context}\n\nWhat do the passages tell about this question? Write only the answer, in a few "
     "words.\n\nQuestion: {input}\nAnswer:"},
    {"2wikimqa",
     "Below are passages from an encyclopedia. The question that follows them needs more than one "
     "of them.\n\n{context}\n\nReply from the passages, in a few words, with the answer "
     "alone.\n\nQuestion: {input}\nAnswer:"},
    {"musique",
     "The answer to the question at the end is found step by step in several of these "
     "passages.\n\n{context}\n\nGo through the steps silently and write only the last answer, in a "
     "few words.\n\nQuestion: {input}\nAnswer:"},
    {"gov_report",
     "This is a report by an office of the government. It has to be condensed to one "
     "page.\n\nReport:\n{context}\n\nWrite the page: what was examined, found and "
     "recommended.\n\nSummary:"},
    {"qmsum",
     "These are the minutes of a meeting, word for word. Someone wants to know about a part of "
     "it.\n\nMinutes:\n{context}\n\nReply to the request in one or more sentences, from the "
     "minutes alone.\n\nRequest: {input}\nAnswer:"},
    {"multi_news",
     "Several newspapers report on the same matter.\n\nArticles:\n{context}\n\nTell in one page "
     "what they report together.\n\nSummary:"},
    {"trec",
     "Each question has a type. Learn the types from the examples and name that of the last "
     "question.\n\n{context}\n{input}"},
    {"triviaqa",
     "Each passage is followed by a question about it and its answer. Complete the last one with "
     "the answer alone.\n\n{context}\n\n{input}"},
    {"samsum",
     "Each conversation is followed by its summary, as in the examples. Complete the last "
     "one.\n\n{context}\n\n{input}"},
    {"passage_count",
     "Among these numbered paragraphs, some are repeated word for word. How many different ones "
     "are there?\n\n{context}\n\nCount every text once, however often it is repeated, and write "
     "only the number.\n\nNumber of different paragraphs:"},
    {"passage_retrieval_en",
     "Here are 30 numbered paragraphs, one of which is summarised below.\n\n{context}\n\nSummary: "
     "{input}\n\nOf which paragraph is this the summary? Write its name with its number, like "
     "\"Paragraph 30\".\n\nAnswer:"},
    {"lcc", "Continue this source file with its next line.\n{context}Next line:\n"},
    {"repobench-p",
     "Continue the last of these source files with its next line.\n{context}{input}Next line:\n"},
});

bool is_task(std::string_view name) {
  return std::any_of(kWordings.begin(), kWordings.end(),
                     [&](const Wording& wording) { return name == wording.task; });
}

}  // namespace

std::string LongBenchPrompt::question(std::string_view input) const {
  std::string out;
  for (std::size_t i = 0; i < after_context.size(); ++i) {
    if (i > 0) out += input;
    out += after_context[i];
  }
  return out;
}

bool has_longbench_input(std::string_view task) {
  return task != "gov_report" && task != "multi_news" && task != "passage_count" && task != "lcc";
}

LongBenchPrompt parse_longbench_prompt(std::string_view text, bool needs_input,
                                       const std::string& name) {
  const auto refuse = [&](const auto&... what) {
    throw Error(ErrorCode::kFormat, concat(name, ": ", what...));
  };
  LongBenchPrompt out;
  bool has_context = false;
  std::string part;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '{' && text[i] != '}') {
      part += text[i];
      continue;
    }
    if (i + 1 < text.size() && text[i + 1] == text[i]) {
      part += text[i++];
      continue;
    }
    const std::size_t end = text.find('}', i);
    if (text[i] == '}' || end == std::string_view::npos)
      refuse("a single '", text[i], "' at byte ", i, "; for the character itself, double it");
    const std::string_view place = text.substr(i + 1, end - i - 1);
    if (place == "context") {
      if (has_context) refuse("{context} occurs twice, and only one document is condensed");
      has_context = true;
      out.before_context = std::move(part);
    } else if (place == "input") {
      if (!has_context)
        refuse(
            "{input} is not after {context}; what comes first is condensed, so that must be the "
            "document");
      out.after_context.push_back(std::move(part));
    } else {
      refuse("unknown place {", place, "}; there are {context} and {input}");
    }
    part.clear();
    i = end;
  }
  if (!has_context) refuse("{context} is missing, the place of the document");
  if (needs_input && out.after_context.empty())
    refuse("{input} is missing, the place of the question");
  out.after_context.push_back(std::move(part));
  return out;
}

LongBenchPrompts default_longbench_prompts() {
  LongBenchPrompts out;
  for (const Wording& wording : kWordings)
    out[wording.task] =
        parse_longbench_prompt(wording.text, has_longbench_input(wording.task), wording.task);
  return out;
}

LongBenchPrompts parse_longbench_prompts(std::string_view json_text) {
  nlohmann::json all;
  try {
    all = nlohmann::json::parse(json_text);
  } catch (const nlohmann::json::parse_error& error) {
    throw Error(ErrorCode::kFormat, concat("LongBench prompts: not JSON at byte ", error.byte));
  } catch (const nlohmann::json::out_of_range&) {
    throw Error(ErrorCode::kFormat, "LongBench prompts: a number is too large");
  }
  if (!all.is_object())
    throw Error(ErrorCode::kFormat, "LongBench prompts: not an object of texts by task");
  LongBenchPrompts out;
  for (const auto& [task, text] : all.items()) {
    if (!is_task(task)) continue;
    const std::string name = concat("LongBench prompt of '", task, "'");
    if (!text.is_string()) throw Error(ErrorCode::kFormat, concat(name, ": not text"));
    out[task] =
        parse_longbench_prompt(text.get_ref<const std::string&>(), has_longbench_input(task), name);
  }
  if (out.empty())
    throw Error(ErrorCode::kFormat,
                "LongBench prompts: none of the 16 English tasks (\"narrativeqa\" ...) is among "
                "the names");
  return out;
}

}  // namespace precis
