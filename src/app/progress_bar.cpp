#include "app/progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace precis::app {

ProgressBar::ProgressBar(std::string label)
    : label_(std::move(label)), on_terminal_(isatty(STDERR_FILENO) == 1) {}

void ProgressBar::update(double fraction) {
  const auto now = Clock::now();
  // Redraw ten times a second; in a log, one line in ten seconds.
  const auto pause =
      on_terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(10000);
  if (now - last_ < pause && !(on_terminal_ && !shown_)) return;
  last_ = now;
  fraction = std::clamp(fraction, 0.0, 1.0);
  const double elapsed_s = std::chrono::duration<double>(now - start_).count();
  const double left_s = fraction > 0 ? elapsed_s * (1 - fraction) / fraction : 0;
  if (!on_terminal_) {
    std::fprintf(stderr, "%s: %3.0f %%, %.0f s left\n", label_.c_str(), 100 * fraction, left_s);
    return;
  }
  constexpr int kWidth = 30;
  const int filled = static_cast<int>(fraction * kWidth);
  std::string bar(static_cast<std::size_t>(filled), '#');
  bar.resize(kWidth, '.');
  std::fprintf(stderr, "\r%s [%s] %3.0f %%  %.0f s left\033[K", label_.c_str(), bar.c_str(),
               100 * fraction, left_s);
  std::fflush(stderr);
  shown_ = true;
}

void ProgressBar::finish() {
  if (shown_) std::fprintf(stderr, "\r\033[K");
  shown_ = false;
}

}  // namespace precis::app
