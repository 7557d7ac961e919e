#include "oracle/libllama_oracle.h"

#include <llama.h>

#include <algorithm>
#include <stdexcept>

namespace precis::test {
namespace {

// Both Precis and the oracle use the one libggml of the process, so whoever comes first loads the
// CPU backend.
void load_cpu_backend() {
  if (ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU) == nullptr) {
    ggml_backend_load_all_from_path(PRECIS_BACKEND_DIR);
  }
}

void drop_log(ggml_log_level, const char*, void*) {}

ggml_log_callback current_log() {
  ggml_log_callback callback = nullptr;
  void* data = nullptr;
  llama_log_get(&callback, &data);
  return callback;
}

const ggml_log_callback default_log = current_log();

// libllama prints pages on loading. Where Precis listens already, its ears are left alone.
void silence_default_log() {
  if (current_log() == default_log) llama_log_set(drop_log, nullptr);
}

struct ModelDeleter {
  void operator()(llama_model* m) const { llama_model_free(m); }
};
struct ContextDeleter {
  void operator()(llama_context* c) const { llama_free(c); }
};

}  // namespace

struct Oracle::Impl {
  std::unique_ptr<llama_model, ModelDeleter> model;
  std::unique_ptr<llama_context, ContextDeleter> context;
  const llama_vocab* vocab = nullptr;
  std::size_t next_position = 0;
};

Oracle::Oracle(const std::string& path, const OracleOptions& options)
    : impl_(std::make_unique<Impl>()) {
  silence_default_log();
  load_cpu_backend();
  llama_model_params model_params = llama_model_default_params();
  model_params.n_gpu_layers = 0;
  impl_->model.reset(llama_model_load_from_file(path.c_str(), model_params));
  if (!impl_->model) throw std::runtime_error("libllama cannot load " + path);
  impl_->vocab = llama_model_get_vocab(impl_->model.get());

  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<std::uint32_t>(options.n_ctx);
  params.n_batch = params.n_ctx;
  params.n_ubatch = 512;
  params.n_threads = options.n_threads;
  params.n_threads_batch = options.n_threads;
  params.type_k = options.exact_attention ? GGML_TYPE_F32 : GGML_TYPE_F16;
  params.type_v = params.type_k;
  params.flash_attn_type =
      options.exact_attention ? LLAMA_FLASH_ATTN_TYPE_DISABLED : LLAMA_FLASH_ATTN_TYPE_AUTO;
  params.no_perf = true;
  impl_->context.reset(llama_init_from_model(impl_->model.get(), params));
  if (!impl_->context) throw std::runtime_error("libllama cannot make a context for " + path);
}

Oracle::~Oracle() = default;
Oracle::Oracle(Oracle&&) noexcept = default;

std::size_t Oracle::n_vocab() const {
  return static_cast<std::size_t>(llama_vocab_n_tokens(impl_->vocab));
}

std::vector<float> Oracle::extend(std::span<const Token> tokens) {
  const auto n = static_cast<std::int32_t>(tokens.size());
  llama_batch batch = llama_batch_init(n, 0, 1);
  batch.n_tokens = n;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    batch.token[i] = tokens[i];
    batch.pos[i] = static_cast<llama_pos>(impl_->next_position + i);
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = 0;
    batch.logits[i] = 1;
  }
  const int status = llama_decode(impl_->context.get(), batch);
  llama_batch_free(batch);
  if (status != 0) throw std::runtime_error("llama_decode failed: " + std::to_string(status));
  impl_->next_position += tokens.size();

  const std::size_t width = n_vocab();
  std::vector<float> logits(tokens.size() * width);
  for (std::int32_t i = 0; i < n; ++i) {
    const float* row = llama_get_logits_ith(impl_->context.get(), i);
    std::copy_n(row, width, logits.data() + static_cast<std::size_t>(i) * width);
  }
  return logits;
}

void Oracle::reset() {
  llama_memory_clear(llama_get_memory(impl_->context.get()), true);
  impl_->next_position = 0;
}

std::vector<Token> Oracle::greedy(std::span<const Token> prompt, std::size_t n) {
  std::vector<float> logits = extend(prompt);
  std::vector<Token> answer;
  while (answer.size() < n) {
    const auto last = logits.end() - static_cast<std::ptrdiff_t>(n_vocab());
    answer.push_back(static_cast<Token>(std::max_element(last, logits.end()) - last));
    if (answer.size() < n) logits = extend({&answer.back(), 1});
  }
  return answer;
}

std::vector<Token> Oracle::tokenize(std::string_view text, bool add_special,
                                    bool parse_special) const {
  const auto length = static_cast<std::int32_t>(text.size());
  std::vector<Token> tokens(text.size() + 8);
  std::int32_t n =
      llama_tokenize(impl_->vocab, text.data(), length, tokens.data(),
                     static_cast<std::int32_t>(tokens.size()), add_special, parse_special);
  if (n < 0) {
    tokens.resize(static_cast<std::size_t>(-n));
    n = llama_tokenize(impl_->vocab, text.data(), length, tokens.data(), -n, add_special,
                       parse_special);
  }
  tokens.resize(static_cast<std::size_t>(n));
  return tokens;
}

std::string Oracle::piece(Token token, bool special) const {
  std::string text(256, '\0');
  const std::int32_t n = llama_token_to_piece(impl_->vocab, token, text.data(),
                                              static_cast<std::int32_t>(text.size()), 0, special);
  if (n < 0) throw std::runtime_error("piece longer than 256 bytes");
  text.resize(static_cast<std::size_t>(n));
  return text;
}

std::string Oracle::detokenize(std::span<const Token> tokens) const {
  std::string text(tokens.size() * 64 + 64, '\0');
  const std::int32_t n =
      llama_detokenize(impl_->vocab, tokens.data(), static_cast<std::int32_t>(tokens.size()),
                       text.data(), static_cast<std::int32_t>(text.size()), false, false);
  if (n < 0) throw std::runtime_error("text longer than 64 bytes per token");
  text.resize(static_cast<std::size_t>(n));
  return text;
}

bool Oracle::is_end_of_generation(Token token) const {
  return llama_vocab_is_eog(impl_->vocab, token);
}

void write_unquantized(const std::string& from, const std::string& to, bool half) {
  silence_default_log();
  load_cpu_backend();
  llama_model_quantize_params params = llama_model_quantize_default_params();
  params.ftype = half ? LLAMA_FTYPE_MOSTLY_F16 : LLAMA_FTYPE_ALL_F32;
  params.allow_requantize = true;
  params.nthread = 1;
  if (llama_model_quantize(from.c_str(), to.c_str(), &params) != 0) {
    throw std::runtime_error("libllama cannot convert " + from);
  }
}

std::string apply_known_template(const std::string& source,
                                 const std::vector<std::pair<std::string, std::string>>& messages,
                                 bool add_generation_prompt) {
  std::vector<llama_chat_message> chat;
  std::size_t size = 1024;
  for (const auto& [role, content] : messages) {
    chat.push_back({role.c_str(), content.c_str()});
    size += 2 * (role.size() + content.size());
  }
  std::string text(size, '\0');
  const std::int32_t n =
      llama_chat_apply_template(source.c_str(), chat.data(), chat.size(), add_generation_prompt,
                                text.data(), static_cast<std::int32_t>(text.size()));
  if (n < 0 || static_cast<std::size_t>(n) > text.size())
    throw std::runtime_error("unknown template");
  text.resize(static_cast<std::size_t>(n));
  return text;
}

}  // namespace precis::test
