#include "model/expand_columns.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"

namespace precis {

void expand_columns(const ggml_tensor& matrix, std::size_t first, std::size_t n, float* out) {
  const auto width = static_cast<std::size_t>(matrix.ne[0]);
  const auto n_rows = static_cast<std::size_t>(matrix.ne[1]);
  PRECIS_CHECK(first + n <= width, first, " + ", n, " > ", width);
  const ggml_to_float_t to_float = ggml_get_type_traits(matrix.type)->to_float;
  PRECIS_CHECK(to_float != nullptr || matrix.type == GGML_TYPE_F32, ggml_type_name(matrix.type));
  const auto block = static_cast<std::size_t>(ggml_blck_size(matrix.type));
  const std::size_t begin = first / block * block;
  const std::size_t end = std::min(width, (first + n + block - 1) / block * block);
  std::vector<float> blocks(end - begin);
  for (std::size_t r = 0; r < n_rows; ++r, out += n) {
    const auto* row = static_cast<const std::byte*>(matrix.data) + r * matrix.nb[1] +
                      ggml_row_size(matrix.type, static_cast<std::int64_t>(begin));
    if (to_float == nullptr) {
      std::memcpy(out, row, n * sizeof(float));
      continue;
    }
    to_float(row, blocks.data(), static_cast<std::int64_t>(blocks.size()));
    std::copy_n(blocks.data() + (first - begin), n, out);
  }
}

}  // namespace precis
