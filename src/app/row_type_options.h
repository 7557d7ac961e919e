// -ctk and -ctv, the same for every command that keeps a cache.
#pragma once

#include <CLI/CLI.hpp>

#include "kernels/row_type.h"

namespace precis::app {

// The value is written when the options are parsed; an unknown name is refused with the known ones.
void add_row_types(CLI::App& command, RowTypes& rows);

}  // namespace precis::app
