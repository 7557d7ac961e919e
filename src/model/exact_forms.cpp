#include "model/exact_forms.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/error.h"

namespace precis {
namespace {

// Types of blocks of 32 weights (scale f16) * (whole number within a signed byte), the scale first.
// Types with a minimum (q4_1, q5_1) and with products of two scales (the K types, iq4_xs) are not
// of that kind. q4_0 and iq4_nl have repacked products in ggml on some processors and lose there.
struct ExactForm {
  ggml_type from;
  ggml_type to;
};
constexpr ExactForm kExactForms[] = {
    {GGML_TYPE_Q5_0, GGML_TYPE_Q8_0},
    {GGML_TYPE_Q4_0, GGML_TYPE_Q8_0},
    {GGML_TYPE_IQ4_NL, GGML_TYPE_Q8_0},
};

constexpr std::size_t kBlock = 32;
constexpr std::size_t kScaleBytes = 2;
constexpr std::uint16_t kOne = 0x3c00;  // 1.0 in f16

// With a scale of one a block expands to its whole numbers, whatever its type.
void convert_blocks(ggml_type type, const std::uint8_t* in, std::uint8_t* out, std::size_t n) {
  constexpr std::size_t kAtOnce = 64;
  constexpr std::size_t kMostBytes = kScaleBytes + kBlock;
  const std::size_t in_bytes = ggml_type_size(type);
  const ggml_to_float_t to_float = ggml_get_type_traits(type)->to_float;
  std::uint8_t blocks[kAtOnce * kMostBytes];
  float numbers[kAtOnce * kBlock];
  for (std::size_t first = 0; first < n; first += kAtOnce) {
    const std::size_t count = std::min(kAtOnce, n - first);
    std::memcpy(blocks, in + first * in_bytes, count * in_bytes);
    for (std::size_t b = 0; b < count; ++b) std::memcpy(blocks + b * in_bytes, &kOne, sizeof kOne);
    to_float(blocks, numbers, static_cast<std::int64_t>(count * kBlock));
    for (std::size_t b = 0; b < count; ++b) {
      std::uint8_t* block = out + (first + b) * kMostBytes;
      std::memcpy(block, in + (first + b) * in_bytes, kScaleBytes);
      for (std::size_t i = 0; i < kBlock; ++i)
        block[kScaleBytes + i] =
            static_cast<std::uint8_t>(static_cast<std::int32_t>(numbers[b * kBlock + i]));
    }
  }
}

}  // namespace

std::optional<ggml_type> exact_form(ggml_type type) {
  for (const ExactForm& form : kExactForms)
    if (form.from == type) return form.to;
  return std::nullopt;
}

void convert_exactly(ggml_type type, const void* in, void* out, std::size_t n, Executor& executor) {
  const std::optional<ggml_type> to = exact_form(type);
  PRECIS_CHECK(to == GGML_TYPE_Q8_0 && ggml_blck_size(type) == kBlock && n % kBlock == 0 &&
                   ggml_type_size(type) < kScaleBytes + kBlock,
               ggml_type_name(type), " ", n);
  constexpr std::size_t kBlocksPerTask = 4096;  // some 0.2 ms
  const std::size_t n_blocks = n / kBlock;
  executor.run(
      (n_blocks + kBlocksPerTask - 1) / kBlocksPerTask, [&](std::size_t task, std::size_t) {
        const std::size_t first = task * kBlocksPerTask;
        convert_blocks(type, static_cast<const std::uint8_t*>(in) + first * ggml_type_size(type),
                       static_cast<std::uint8_t*>(out) + first * ggml_type_size(*to),
                       std::min(kBlocksPerTask, n_blocks - first));
      });
}

void fill_weight(const GgufFile::Tensor& source, ggml_tensor* weight, Executor& executor) {
  if (source.type == weight->type) {
    ggml_backend_tensor_set(weight, source.data, 0, source.bytes);
    return;
  }
  PRECIS_CHECK(exact_form(source.type) == weight->type, source.name);
  const auto n = static_cast<std::size_t>(ggml_nelements(weight));
  if (ggml_backend_buffer_is_host(weight->buffer)) {
    convert_exactly(source.type, source.data, weight->data, n, executor);
    return;
  }
  std::vector<std::byte> rows(ggml_nbytes(weight));
  convert_exactly(source.type, source.data, rows.data(), n, executor);
  ggml_backend_tensor_set(weight, rows.data(), 0, rows.size());
}

}  // namespace precis
