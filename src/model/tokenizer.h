// Text to tokens and back, through libllama's vocabularies. Immutable and thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/utf8.h"

namespace precis {

using Token = std::int32_t;

class Tokenizer {
 public:
  // Loads only the vocabulary of a GGUF file that GgufFile has already checked. Throws
  // Error(kFormat).
  explicit Tokenizer(const std::string& gguf_path);
  ~Tokenizer();

  std::size_t n_vocab() const;
  // parse_special: control tokens written out in the text become control tokens. Never set it for
  // text that a user or a document supplies. add_bos: add the model's beginning token where it
  // wants one.
  std::vector<Token> tokenize(std::string_view text, bool add_bos, bool parse_special) const;
  // Bytes of one token; control tokens give their name if `special`, else nothing. May be part of a
  // UTF-8 character.
  std::string piece(Token token, bool special = false) const;
  std::string detokenize(const std::vector<Token>& tokens) const;
  bool is_end_of_generation(Token token) const;
  bool adds_bos() const;
  // Text of the beginning and end tokens; empty if the model has none.
  std::string bos_text() const;
  std::string eos_text() const;

  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace precis
