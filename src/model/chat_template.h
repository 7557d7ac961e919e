// The model's own Jinja chat template, run by llama-common's engine.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace precis {

struct ChatMessage {
  std::string role;
  std::string content;
};

// A stretch of a rendered prompt. Input text came from a message and must not be parsed for control
// tokens.
struct PromptPart {
  std::string text;
  bool is_input = false;
};

class ChatTemplate {
 public:
  // Throws Error(kFormat) with the engine's message if the template does not parse.
  ChatTemplate(const std::string& source, std::string bos_text, std::string eos_text);
  ~ChatTemplate();

  // Throws Error(kInvalidArgument) with the template's own message if it refuses the messages.
  std::vector<PromptPart> render(const std::vector<ChatMessage>& messages,
                                 bool add_generation_prompt) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace precis
