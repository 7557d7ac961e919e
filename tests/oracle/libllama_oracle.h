// libllama as the reference: the same GGUF file, run by the code that Precis must agree with. Tests
// only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace precis::test {

using Token = std::int32_t;

struct OracleOptions {
  int n_threads = 2;
  std::size_t n_ctx = 1024;
  // An f32 cache without flash attention is libllama's most exact path: nothing of attention is
  // rounded below f32. An f16 cache with flash attention is what its users run.
  bool exact_attention = false;
};

class Oracle {
 public:
  // Throws std::runtime_error if libllama does not load the file.
  explicit Oracle(const std::string& path, const OracleOptions& options = {});
  ~Oracle();
  Oracle(Oracle&&) noexcept;

  std::size_t n_vocab() const;
  // Appends tokens to the sequence; logits of each of them, [tokens, n_vocab].
  std::vector<float> extend(std::span<const Token> tokens);
  // Forgets the sequence.
  void reset();
  // Appends `prompt`, then n tokens greedily (not stopping at end tokens).
  std::vector<Token> greedy(std::span<const Token> prompt, std::size_t n);

  std::vector<Token> tokenize(std::string_view text, bool add_special, bool parse_special) const;
  std::string piece(Token token, bool special) const;
  std::string detokenize(std::span<const Token> tokens) const;
  bool is_end_of_generation(Token token) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Writes the same weights as f32 (or f16), with libllama's own converter: then activations are not
// rounded to 8 bits in each product, which hides small differences under noise.
void write_unquantized(const std::string& from, const std::string& to, bool half);

// llama_chat_apply_template: a fixed list of known templates, recognised by their text. Throws if
// unknown.
std::string apply_known_template(const std::string& source,
                                 const std::vector<std::pair<std::string, std::string>>& messages,
                                 bool add_generation_prompt);

}  // namespace precis::test
