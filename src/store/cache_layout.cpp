#include "store/cache_layout.h"

#include "base/error.h"

namespace precis {
namespace {

const char* kind_name(SectionKind kind) {
  switch (kind) {
    case SectionKind::kInfo:
      return "info";
    case SectionKind::kTokens:
      return "tokens";
    case SectionKind::kText:
      return "text";
    case SectionKind::kReport:
      return "report";
    case SectionKind::kLogits:
      return "logits";
    case SectionKind::kShape:
      return "shape";
    case SectionKind::kRows:
      return "rows";
  }
  return "?";
}

}  // namespace

std::string Section::name() const {
  return layer == kNoLayer ? concat("section '", kind_name(kind), "'")
                           : concat("section '", kind_name(kind), "' of layer ", layer);
}

std::vector<Section> section_order(std::size_t n_layers) {
  std::vector<Section> out;
  for (std::uint32_t i = 0; i < kFileSections; ++i)
    out.push_back({static_cast<SectionKind>(i + 1)});
  for (std::uint32_t il = 0; il < n_layers; ++il) {
    out.push_back({SectionKind::kShape, il});
    out.push_back({SectionKind::kRows, il});
  }
  return out;
}

}  // namespace precis
