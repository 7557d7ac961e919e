#include "app/interrupt.h"

#include <csignal>

namespace precis::app {
namespace {

CancelFlag interrupted{false};

void on_interrupt(int) {
  interrupted = true;
  std::signal(SIGINT, SIG_DFL);
}

}  // namespace

void catch_interrupt() { std::signal(SIGINT, on_interrupt); }

const CancelFlag& interrupt_flag() { return interrupted; }

}  // namespace precis::app
