// Ctrl-C as a flag that long work looks at.
#pragma once

#include "base/executor.h"

namespace precis::app {

// From now on the first SIGINT raises the flag, and a second one ends the process at once.
void catch_interrupt();
const CancelFlag& interrupt_flag();

}  // namespace precis::app
