// The architectures that Precis runs, as data: one row each. Nothing else switches on an
// architecture.
#pragma once

#include <string>

#include "model/config.h"
#include "model/gguf_file.h"

namespace precis {

// Reads and checks every hyperparameter of a file. Throws Error: kUnsupported for an unknown
// architecture (with the list of known ones) or a feature we cannot run; kFormat for missing,
// ill-typed or absurd values.
ModelConfig read_config(const GgufFile& file);

// "gemma3, llama, qwen2, qwen3"
std::string known_architectures();

}  // namespace precis
