// The methods that Precis ships: one file per paper in this folder, one line in methods.def each.
#pragma once

#include "compress/method.h"

namespace precis {

// A new registry with every stage and preset of methods.def.
Registry builtin_methods();

}  // namespace precis
