#include "methods/registry.h"

namespace precis {

// Explicit declarations and calls: self-registering statics would be dropped by the linker, because
// nothing else refers to these object files of a static library.
#define PRECIS_METHOD(name) void register_##name(Registry& registry);
#include "methods/methods.def"
#undef PRECIS_METHOD

Registry builtin_methods() {
  Registry registry;
#define PRECIS_METHOD(name) register_##name(registry);
#include "methods/methods.def"
#undef PRECIS_METHOD
  return registry;
}

}  // namespace precis
