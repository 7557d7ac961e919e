// Refuses tokenizer metadata on which libllama's loader would read out of bounds or abort.
#pragma once

#include <cstddef>

#include "model/gguf_file.h"

namespace precis {

// Throws Error(kFormat) that names the key.
void check_vocabulary(const GgufFile& file, std::size_t n_vocab);

}  // namespace precis
