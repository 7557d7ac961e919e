#include "engine/prompt.h"

#include <utility>

#include "base/error.h"

namespace precis {
namespace {

std::string stripped(const std::string& text) {
  constexpr const char* kSpace = " \t\r\n\f\v";
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

void append(std::vector<Token>& to, const std::vector<Token>& tokens) {
  to.insert(to.end(), tokens.begin(), tokens.end());
}

// The message as the template shows it, with the document and the question in parts of their own.
struct CutPrompt {
  std::vector<PromptPart> context;
  std::vector<PromptPart> question;
  std::vector<PromptPart> ending;
};

// Finds where the question begins among the template's parts, the end of the last input part that
// holds it, and where the user's words end.
CutPrompt cut(const std::vector<PromptPart>& parts, const std::string& question) {
  CutPrompt out;
  std::size_t last_input = parts.size();
  std::size_t with_question = parts.size();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].is_input) continue;
    last_input = i;
    if (!question.empty() && parts[i].text.ends_with(question)) with_question = i;
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > last_input) {
      out.ending.push_back(parts[i]);
    } else if (i < with_question) {
      out.context.push_back(parts[i]);
    } else if (i == with_question) {
      std::string before = parts[i].text.substr(0, parts[i].text.size() - question.size());
      if (!before.empty()) out.context.push_back({std::move(before), true});
      out.question.push_back({question, true});
    } else {
      out.question.push_back(parts[i]);
    }
  }
  return out;
}

}  // namespace

PreparedPrompt prepare_prompt(const Engine& engine, const std::string& document,
                              const std::string& question, bool use_template) {
  const std::string text = stripped(document);
  const std::string asked = stripped(question);
  if (text.empty() && asked.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "the prompt is empty: give a document (-f) or a question (-p) with some text");
  const std::string separator = "\n\n";
  const bool both = !text.empty() && !asked.empty();
  const std::string tail = both ? separator + asked : "";

  PreparedPrompt prompt;
  const ChatTemplate* chat = use_template ? engine.model().chat_template() : nullptr;
  std::vector<PromptPart> parts;
  if (chat != nullptr) {
    const std::string content = both ? text + tail : text + asked;
    parts = chat->render({{"user", content}}, /*add_generation_prompt=*/true);
    if (parts.empty())
      throw Error(ErrorCode::kInvalidArgument,
                  "the model's chat template renders to nothing; use --raw to do without it");
    prompt.used_template = true;
  } else {
    parts.push_back({both ? text + tail : text + asked, true});
    if (!asked.empty()) parts.push_back({"\n", false});
  }
  const CutPrompt pieces = cut(parts, tail);

  const Tokenizer& tokenizer = engine.tokenizer();
  const std::string bos = tokenizer.bos_text();
  bool add_bos = tokenizer.adds_bos() &&
                 !(chat != nullptr && !bos.empty() && parts.front().text.starts_with(bos));
  const auto encode = [&](const std::vector<PromptPart>& from, std::vector<Token>& to) {
    for (const PromptPart& part : from) {
      append(to, tokenizer.tokenize(part.text, add_bos, !part.is_input));
      add_bos = false;
    }
  };
  encode(pieces.context, prompt.context);
  encode(pieces.question, prompt.question);
  std::vector<Token>& last = prompt.question.empty() ? prompt.context : prompt.question;
  const std::size_t n_words = last.size();
  encode(pieces.ending, last);
  prompt.n_ending = last.size() - n_words;
  return prompt;
}

std::vector<Token> prepare_document(const Engine& engine, const std::string& document,
                                    bool use_template) {
  if (stripped(document).empty())
    throw Error(ErrorCode::kInvalidArgument, "the document is empty: it has no text");
  // Letters of both cases show whether the template leaves the words as they are.
  PreparedPrompt prompt = prepare_prompt(engine, document, "Any question?", use_template);
  if (prompt.question.empty())
    throw Error(ErrorCode::kUnsupported,
                "the model's chat template changes the message, so that no document can be read "
                "before its question; use --raw to do without the template");
  return std::move(prompt.context);
}

PreparedPrompt prepare_question(const Engine& engine, const std::string& document,
                                const std::string& question, bool use_template) {
  if (stripped(question).empty())
    throw Error(ErrorCode::kInvalidArgument, "the question is empty: give one (-p) with some text");
  const std::vector<Token> context = prepare_document(engine, document, use_template);
  PreparedPrompt prompt = prepare_prompt(engine, document, question, use_template);
  if (prompt.context != context || prompt.question.empty())
    throw Error(ErrorCode::kInvalidArgument,
                concat("with this question ", prompt.context.size(),
                       " tokens come before it, with another ", context.size(),
                       ": the chat template looks at the question first, so it cannot be asked of "
                       "a document read before it; use --raw to do without the template"));
  return prompt;
}

}  // namespace precis
