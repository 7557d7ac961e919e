// Decides for each type of a file's matrices in which form they are multiplied, by timing products
// with the file's own matrices. Not for other folders.
#pragma once

#include <vector>

#include "model/ggml_backend.h"
#include "model/gguf_file.h"
#include "model/weight_forms.h"

namespace precis {

// `matrices` are those that are multiplied. Types without an exact form do not occur in the report.
// Takes some 0.2 s and at most 160 MiB of memory (more if every matrix is larger than 48 MiB),
// given back before it returns. Throws Error(kOutOfMemory).
WeightsReport choose_forms(WeightsMode mode, const std::vector<const GgufFile::Tensor*>& matrices,
                           Backend& backend);

}  // namespace precis
