#include "kernels/row_type.h"

namespace precis {
namespace {

constexpr RowType kAll[] = {RowType::kF16, RowType::kQ8_0, RowType::kQ4};
constexpr std::size_t kHalfBytes = 2;

}  // namespace

const char* row_type_name(RowType type) {
  switch (type) {
    case RowType::kF16:
      return "f16";
    case RowType::kQ8_0:
      return "q8_0";
    case RowType::kQ4:
      return "q4";
  }
  return "?";
}

std::string row_type_names() {
  std::string names;
  for (RowType type : kAll) names += (names.empty() ? "" : ", ") + std::string(row_type_name(type));
  return names;
}

std::optional<RowType> find_row_type(std::string_view name) {
  for (RowType type : kAll)
    if (name == row_type_name(type)) return type;
  return {};
}

std::size_t key_bytes(RowType type, std::size_t head_dim, std::size_t n) {
  if (type != RowType::kQ4) return value_bytes(type, head_dim, n);
  const std::size_t n_groups = (n + kGroupEntries - 1) / kGroupEntries;
  return head_dim * n_groups * 2 * kHalfBytes + n * head_dim / 2;
}

std::size_t value_bytes(RowType type, std::size_t head_dim, std::size_t n) {
  const std::size_t n_blocks = head_dim / kBlockChannels;
  switch (type) {
    case RowType::kF16:
      return n * head_dim * kHalfBytes;
    case RowType::kQ8_0:
      return n * (head_dim + n_blocks * kHalfBytes);
    case RowType::kQ4:
      return n * (head_dim / 2 + n_blocks * 2 * kHalfBytes);
  }
  return 0;
}

}  // namespace precis
