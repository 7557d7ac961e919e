// Error handling. There are three kinds and no fourth:
//   a bug in Precis            -> PRECIS_CHECK: prints file:line and values, aborts
//   the world is wrong         -> throw Error(code, message); the message names the object, the two
//                                 numbers that disagree, and the way out
//   a normal "no" (not found)  -> std::optional or bool
// Error is caught in main, the HTTP handler, the C API guard and the fuzz drivers only.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace precis {

enum class ErrorCode {
  kIo,               // a file cannot be read or written
  kFormat,           // a file is not what it claims to be
  kUnsupported,      // well formed, but Precis cannot do it
  kInvalidArgument,  // the caller asked for something impossible
  kOutOfMemory,
  kCancelled,  // the caller's cancel flag was honoured
  kInternal,
};

// Lower-case name of a code, for JSON and logs.
const char* error_code_name(ErrorCode code);

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

// Concatenates its arguments with operator<<; for error messages.
template <class... Args>
std::string concat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

// Prints "file:line: check failed: expression: values" to stderr and aborts.
[[noreturn]] void check_failed(const char* file, int line, const char* expression,
                               const std::string& values);

}  // namespace precis

// Always on. Extra arguments are streamed into the message. Must be unreachable from any input.
#define PRECIS_CHECK(condition, ...)                                           \
  do {                                                                         \
    if (!(condition)) [[unlikely]]                                             \
      ::precis::check_failed(__FILE__, __LINE__, #condition,                   \
                             ::precis::concat("" __VA_OPT__(, ) __VA_ARGS__)); \
  } while (0)
