// Decides for each type of a file's matrices in which form they are multiplied, by timing products
// with the file's own matrices. Not for other folders.
#pragma once

#include <vector>

#include "model/ggml_backend.h"
#include "model/gguf_file.h"
#include "model/weight_forms.h"

namespace precis {

// `matrices` are those that are multiplied. Types without an exact form do not occur in the report.
// Takes some 0.2 s and at most 160 MiB of memory, given back before it returns. Throws
// Error(kOutOfMemory).
WeightsReport choose_forms(WeightsMode mode, const std::vector<const GgufFile::Tensor*>& matrices,
                           Backend& backend);

// Fills a placed weight from the file, converted if it is of the other form's type.
void set_matrix(const GgufFile::Tensor& source, ggml_tensor* weight, Backend& backend);

}  // namespace precis
