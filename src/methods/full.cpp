// The uncompressed cache: the reference that every method is compared with.
#include "compress/method.h"

namespace precis {

void register_full(Registry& registry);

void register_full(Registry& registry) {
  registry.add_preset({"full", "", "no compression", "keeps every token, whatever the budget"});
}

}  // namespace precis
