// A sample's context and question as tokens, cut where an evaluation condenses.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "tasks/sample.h"

namespace precis {

// Whether a method knows the question when it condenses. The two are different tests: window-scored
// methods look at the end of the prompt, so with kAware they are told what to keep.
enum class QueryMode { kAgnostic, kAware };

const char* query_mode_name(QueryMode mode);  // "agnostic", "aware"
std::optional<QueryMode> find_query_mode(std::string_view name);

// One prompt, in three parts. kAgnostic condenses the document, kAware document and question; the
// rest is read after that, through the condensed cache.
struct EvalPrompt {
  std::vector<Token> document;  // with the template's beginning; not empty
  std::vector<Token> question;  // may be empty: both modes are the same then
  // The template's end and the answer's beginning; not empty, so that no answer begins with logits
  // of the full cache.
  std::vector<Token> ending;
  bool used_template = false;

  std::size_t size() const { return document.size() + question.size() + ending.size(); }
};

// An answer prefix loses its leading spaces after a template. Throws Error(kUnsupported) if the
// template changes the message so that the question cannot be told apart, and
// Error(kInvalidArgument) if context and question have fewer than two tokens.
EvalPrompt make_eval_prompt(const Engine& engine, const TaskSample& sample,
                            const TaskQuestion& question, bool use_template);

}  // namespace precis
