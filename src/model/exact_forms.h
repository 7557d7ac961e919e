// Conversions of quantised rows that lose nothing. Not for other folders.
#pragma once

#include <optional>

#include "base/executor.h"
#include "model/ggml_backend.h"
#include "model/gguf_file.h"

namespace precis {

// The type to which rows of `type` convert exactly and that is unpacked with less work; nothing if
// there is none.
std::optional<ggml_type> exact_form(ggml_type type);

// Converts n weights, a multiple of both types' blocks, to exact_form(type). Both expand to the
// same numbers bit for bit, scales that are not finite included.
void convert_exactly(ggml_type type, const void* in, void* out, std::size_t n, Executor& executor);

// Fills a placed weight from the file, converted if it is of the file type's exact form.
void fill_weight(const GgufFile::Tensor& source, ggml_tensor* weight, Executor& executor);

}  // namespace precis
