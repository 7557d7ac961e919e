// Columns of a matrix of any type, at any place, against its rows as ggml expands them whole.
#include "model/expand_columns.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "model/ggml_backend.h"

namespace precis::test {
namespace {

constexpr std::int64_t kWidth = 768;
constexpr std::int64_t kRows = 5;

TEST(ExpandColumns, AnyTypeAndRange) {
  for (const ggml_type type :
       {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q4_0, GGML_TYPE_Q4_1,
        GGML_TYPE_Q5_0, GGML_TYPE_Q8_0, GGML_TYPE_Q4_K, GGML_TYPE_Q6_K, GGML_TYPE_IQ4_NL}) {
    ggml_context_ptr context(ggml_init({std::size_t{1} << 20, nullptr, false}));
    ggml_tensor* matrix = ggml_new_tensor_2d(context.get(), type, kWidth, kRows);
    std::mt19937 draw(2);
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<std::size_t>(kWidth * kRows));
    for (float& value : values) value = normal(draw);
    ggml_quantize_chunk(type, values.data(), matrix->data, 0, kRows, kWidth, nullptr);
    if (type != GGML_TYPE_F32)
      ggml_get_type_traits(type)->to_float(matrix->data, values.data(), kWidth * kRows);
    for (const auto& [first, n] : std::vector<std::pair<std::size_t, std::size_t>>{
             {0, 768}, {0, 64}, {64, 64}, {192, 448}, {250, 7}, {767, 1}, {255, 2}}) {
      std::vector<float> columns(n * kRows, -1.0f);
      expand_columns(*matrix, first, n, columns.data());
      for (std::size_t r = 0; r < kRows; ++r)
        for (std::size_t c = 0; c < n; ++c)
          ASSERT_EQ(columns[r * n + c], values[r * kWidth + first + c])
              << ggml_type_name(type) << " from " << first << ", row " << r << ", column " << c;
    }
  }
}

}  // namespace
}  // namespace precis::test
