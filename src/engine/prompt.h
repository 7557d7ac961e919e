// A document and a question as tokens: what is condensed, and what comes after.
#pragma once

#include <string>
#include <vector>

#include "engine/engine.h"

namespace precis {

struct PreparedPrompt {
  std::vector<Token> context;  // condensed: the template's beginning and the document
  std::vector<Token>
      question;  // read after condensing: the question and the template's end; may be empty
  // How many tokens of the question, or of the context if there is no question, come after the
  // user's words: the template's end.
  std::size_t n_ending = 0;
  bool used_template = false;
};

// Wraps both in one user message of the model's chat template (if it has one and use_template), and
// cuts the token sequence where the question begins. Document and question never become control
// tokens. White space at their ends is dropped, as chat templates do. Without a question the whole
// prompt is context; without a document the question is. Throws Error(kInvalidArgument) if both are
// empty.
PreparedPrompt prepare_prompt(const Engine& engine, const std::string& document,
                              const std::string& question, bool use_template);

// The context alone, as prepare_prompt gives it with any question: what can be condensed before
// there is one. Throws Error(kUnsupported) if the chat template lets no question stand behind the
// document, and like prepare_prompt.
std::vector<Token> prepare_document(const Engine& engine, const std::string& document,
                                    bool use_template);
// The prompt of both, whose question can follow such a context. The context may be another than the
// one read earlier where a template looks at the clock: its question follows that one as well.
// Throws Error(kInvalidArgument) if the question is empty, or if the template looks at it before it
// shows the document, and like prepare_document.
PreparedPrompt prepare_question(const Engine& engine, const std::string& document,
                                const std::string& question, bool use_template);

}  // namespace precis
