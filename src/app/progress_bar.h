// Progress on stderr: a bar with the time left on a terminal, a plain line now and then elsewhere.
#pragma once

#include <chrono>
#include <string>

namespace precis::app {

class ProgressBar {
 public:
  explicit ProgressBar(std::string label);
  // fraction in [0, 1]; cheap to call often.
  void update(double fraction);
  // Clears the bar, or ends the lines. Idempotent; also done by the destructor.
  void finish();
  ~ProgressBar() { finish(); }

 private:
  using Clock = std::chrono::steady_clock;
  std::string label_;
  bool on_terminal_;
  bool shown_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_ = start_;
};

}  // namespace precis::app
