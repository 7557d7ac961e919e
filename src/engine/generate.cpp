#include "engine/generate.h"

#include <chrono>

namespace precis {
namespace {

// Where the first line that is not empty ends; npos: it does not yet.
std::size_t end_of_first_line(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  return begin == std::string::npos ? begin : text.find('\n', begin);
}

}  // namespace

Generation generate(Session& session, Sampler& sampler, const GenerateOptions& options,
                    const std::function<void(const std::string&)>& on_text,
                    const CallControl& control) {
  const Engine& engine = *session.engine();
  Generation out;
  Utf8Assembler characters;
  const auto emit = [&](const std::string& text) {
    out.text += text;
    if (on_text && !text.empty()) on_text(text);
  };
  while (out.tokens.size() < options.max_tokens) {
    const Token token = sampler.sample(session.last_logits());
    if (!options.ignore_end && engine.tokenizer().is_end_of_generation(token)) {
      out.ended = true;
      break;
    }
    out.tokens.push_back(token);
    emit(characters.push(engine.tokenizer().piece(token)));
    if (options.stop_at_newline) {
      const std::size_t end = end_of_first_line(out.text);
      if (end != std::string::npos) {
        out.text.resize(end);
        out.ended = true;
        return out;
      }
    }
    if (out.tokens.size() == options.max_tokens ||
        session.next_position() >= engine.config().n_ctx_train)
      break;
    const auto start = std::chrono::steady_clock::now();
    session.extend(std::span(&token, 1), 1, control);
    out.decode_ms +=
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    ++out.n_decoded;
  }
  emit(characters.finish());
  return out;
}

}  // namespace precis
