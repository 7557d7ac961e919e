// --weights of several subcommands.
#pragma once

#include <string>

#include "app/commands.h"

namespace precis::app {

inline void add_weights_mode(CLI::App& command, std::string& mode) {
  command
      .add_option(
          "--weights", mode,
          "Form of q5_0, q4_0 and iq4_nl weights in memory: file (as stored), q8_0 (the same "
          "numbers, faster on some processors, up to 1.9 times the bytes) or auto (measured)")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "file", "q8_0"}))
      ->envname("PRECIS_ARG_WEIGHTS");
}

}  // namespace precis::app
