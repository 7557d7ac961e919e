// Loading a model that may be damaged: in a child process, so that a crash is one failed file.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "base/error.h"
#include "model/model.h"

namespace precis::test {

struct LoadResult {
  std::string code;     // "ok", an error code's name, "exception" or "crash"
  std::string message;  // of the error
};

inline LoadResult load_here(const std::string& path) {
  try {
    Backend backend(1);
    Model::load(path, backend);
    return {"ok", ""};
  } catch (const Error& error) {
    return {error_code_name(error.code()), error.what()};
  } catch (const std::exception& error) {
    return {"exception", error.what()};
  }
}

inline LoadResult load_in_child(const std::string& path) {
  int pipe_ends[2];
  PRECIS_CHECK(pipe(pipe_ends) == 0);
  const pid_t child = fork();
  PRECIS_CHECK(child >= 0);
  if (child == 0) {
    const LoadResult result = load_here(path);
    const std::string text = result.code + "\n" + result.message;
    const bool written = write(pipe_ends[1], text.data(), text.size()) >= 0;
    _exit(written ? 0 : 1);
  }
  close(pipe_ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = read(pipe_ends[0], buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<std::size_t>(n));
  }
  close(pipe_ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  const std::size_t end = text.find('\n');
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0 || end == std::string::npos) {
    return {"crash", "wait status " + std::to_string(status)};
  }
  return {text.substr(0, end), text.substr(end + 1)};
}

}  // namespace precis::test
