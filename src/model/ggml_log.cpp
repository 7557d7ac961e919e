#include "model/ggml_log.h"

#include <llama.h>

#include <mutex>

namespace precis {
namespace {
thread_local LogCapture* current = nullptr;
}

void record_log_line(int level, const char* text) {
  if (current == nullptr || level < GGML_LOG_LEVEL_WARN) return;
  std::string line(text);
  while (!line.empty() && (line.back() == '\n' || line.back() == ' ')) line.pop_back();
  // "gguf_init_from_file_impl: reason" -> "reason": the function's name helps nobody who reads the
  // message.
  const std::size_t colon = line.find(": ");
  if (colon != std::string::npos && line.find(' ') > colon) line.erase(0, colon + 2);
  // The first line says what is wrong; the ones after it only that loading failed.
  if (!line.empty() && current->first_.empty() && level == GGML_LOG_LEVEL_ERROR)
    current->first_ = line;
}

LogCapture::LogCapture() : outer_(current) {
  static std::once_flag once;
  std::call_once(once, [] {
    const auto callback = [](ggml_log_level level, const char* text, void*) {
      record_log_line(level, text);
    };
    ggml_log_set(callback, nullptr);
    llama_log_set(callback, nullptr);
  });
  current = this;
}

LogCapture::~LogCapture() { current = outer_; }

std::string LogCapture::first_error(const std::string& fallback) const {
  return first_.empty() ? fallback : first_;
}

}  // namespace precis
