#include "model/tokenizer.h"

#include <llama.h>

#include "base/error.h"
#include "model/ggml_log.h"

namespace precis {

struct Tokenizer::Impl {
  std::unique_ptr<llama_model, void (*)(llama_model*)> model{nullptr, llama_model_free};
  const llama_vocab* vocab = nullptr;

  std::string token_text(llama_token token) const {
    if (token == LLAMA_TOKEN_NULL) return {};
    const char* text = llama_vocab_get_text(vocab, token);
    return text == nullptr ? std::string() : std::string(text);
  }
};

Tokenizer::Tokenizer(const std::string& gguf_path) : impl_(std::make_unique<Impl>()) {
  LogCapture log;
  llama_model_params params = llama_model_default_params();
  params.vocab_only = true;
  impl_->model.reset(llama_model_load_from_file(gguf_path.c_str(), params));
  if (!impl_->model)
    throw Error(ErrorCode::kFormat, concat("cannot read the tokenizer of '", gguf_path, "': ",
                                           log.first_error("libllama refused its vocabulary")));
  impl_->vocab = llama_model_get_vocab(impl_->model.get());
}

Tokenizer::~Tokenizer() = default;

std::size_t Tokenizer::n_vocab() const {
  return static_cast<std::size_t>(llama_vocab_n_tokens(impl_->vocab));
}

std::vector<Token> Tokenizer::tokenize(std::string_view text, bool add_bos,
                                       bool parse_special) const {
  constexpr std::size_t kMaxBytes = 1u << 30;
  if (text.size() > kMaxBytes)
    throw Error(ErrorCode::kInvalidArgument, concat("text of ", text.size(), " bytes; at most ",
                                                    kMaxBytes, " can be read at once"));
  std::vector<Token> tokens(text.size() / 3 + 8);
  const auto call = [&] {
    return llama_tokenize(impl_->vocab, text.data(), static_cast<std::int32_t>(text.size()),
                          tokens.data(), static_cast<std::int32_t>(tokens.size()), add_bos,
                          parse_special);
  };
  try {
    std::int32_t n = call();
    if (n < 0) {
      tokens.resize(static_cast<std::size_t>(-n));
      n = call();
    }
    PRECIS_CHECK(n >= 0, n);
    tokens.resize(static_cast<std::size_t>(n));
  } catch (const std::exception& e) {
    // libllama throws through its C interface when a vocabulary lacks the bytes of a character.
    throw Error(ErrorCode::kUnsupported,
                concat("the model's vocabulary cannot write this text: ", e.what()));
  }
  return tokens;
}

std::string Tokenizer::piece(Token token, bool special) const {
  PRECIS_CHECK(token >= 0 && static_cast<std::size_t>(token) < n_vocab(), token);
  std::string text(32, '\0');
  std::int32_t n = llama_token_to_piece(impl_->vocab, token, text.data(),
                                        static_cast<std::int32_t>(text.size()), 0, special);
  if (n < 0) {
    text.resize(static_cast<std::size_t>(-n));
    n = llama_token_to_piece(impl_->vocab, token, text.data(),
                             static_cast<std::int32_t>(text.size()), 0, special);
  }
  text.resize(static_cast<std::size_t>(n));
  return text;
}

std::string Tokenizer::detokenize(const std::vector<Token>& tokens) const {
  std::string text;
  for (Token token : tokens) text += piece(token);
  return text;
}

bool Tokenizer::is_end_of_generation(Token token) const {
  return llama_vocab_is_eog(impl_->vocab, token);
}

bool Tokenizer::adds_bos() const { return llama_vocab_get_add_bos(impl_->vocab); }

std::string Tokenizer::bos_text() const { return impl_->token_text(llama_vocab_bos(impl_->vocab)); }

std::string Tokenizer::eos_text() const { return impl_->token_text(llama_vocab_eos(impl_->vocab)); }

}  // namespace precis
