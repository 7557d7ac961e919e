// Keeps what ggml and libllama would print, so that it can become part of an error message.
#pragma once

#include <string>

namespace precis {

// While alive, collects the error lines logged on this thread. The library itself prints nothing.
class LogCapture {
 public:
  LogCapture();
  ~LogCapture();
  LogCapture(const LogCapture&) = delete;
  // The first error line without its newline, or `fallback`.
  std::string first_error(const std::string& fallback) const;

 private:
  LogCapture* outer_;
  std::string first_;
  friend void record_log_line(int level, const char* text);
};

}  // namespace precis
