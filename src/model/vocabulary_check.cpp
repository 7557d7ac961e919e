#include "model/vocabulary_check.h"

#include <string>
#include <string_view>
#include <unordered_set>

#include "base/error.h"

namespace precis {

void check_vocabulary(const GgufFile& file, std::size_t n_vocab) {
  const std::string model = file.string("tokenizer.ggml.model");
  if (model != "llama" && model != "gpt2")
    throw Error(ErrorCode::kUnsupported,
                concat("tokenizer '", model, "' in '", file.path(),
                       "' is not supported; Precis reads llama (SPM) and gpt2 (BPE) ones"));
  const std::size_t n_tokens = file.array_length("tokenizer.ggml.tokens", GGUF_TYPE_STRING);
  if (n_tokens != n_vocab)
    throw Error(ErrorCode::kFormat,
                concat("'", file.path(), "' has ", n_tokens, " tokens in its vocabulary but ",
                       n_vocab, " rows in token_embd.weight"));
  const auto same_length = [&](const char* key, gguf_type type) {
    const std::size_t n = file.array_length(key, type);
    if (n != 0 && n != n_tokens)
      throw Error(ErrorCode::kFormat, concat("metadata key '", key, "' in '", file.path(), "' has ",
                                             n, " elements for ", n_tokens, " tokens"));
  };
  same_length("tokenizer.ggml.scores", GGUF_TYPE_FLOAT32);
  same_length("tokenizer.ggml.token_type", GGUF_TYPE_INT32);
  file.array_length("tokenizer.ggml.merges", GGUF_TYPE_STRING);
  for (const char* key :
       {"bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "cls", "mask"}) {
    const std::string name = std::string("tokenizer.ggml.") + key + "_token_id";
    const auto id = file.find_uint(name);
    // 2^32 - 1 is how some writers say "none".
    if (id && *id >= n_tokens && *id != 0xffffffffu)
      throw Error(ErrorCode::kFormat, concat("metadata key '", name, "' in '", file.path(), "' is ",
                                             *id, "; the vocabulary has ", n_tokens, " tokens"));
  }
  for (const char* key : {"add_bos_token", "add_eos_token", "add_space_prefix",
                          "remove_extra_whitespaces", "add_sep_token"})
    file.find_bool(std::string("tokenizer.ggml.") + key);
  file.find_string("tokenizer.ggml.pre");
  for (const char* end : {"bos", "eos"})
    if (file.find_bool(std::string("tokenizer.ggml.add_") + end + "_token").value_or(false) &&
        file.find_uint(std::string("tokenizer.ggml.") + end + "_token_id").value_or(0) ==
            0xffffffffu)
      throw Error(ErrorCode::kFormat,
                  concat("'", file.path(), "' asks for a ", end, " token but has none"));
  std::unordered_set<std::string_view> seen;
  for (std::size_t i = 0; i < n_tokens; ++i) {
    const std::string_view text = file.array_string("tokenizer.ggml.tokens", i);
    if (!text.empty() && !seen.insert(text).second)
      throw Error(ErrorCode::kFormat,
                  concat("'", file.path(), "' has the token '", text, "' twice in its vocabulary"));
  }
  file.find_string("tokenizer.chat_template");
}

}  // namespace precis
