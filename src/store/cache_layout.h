// The frame of a cache file, as docs/CACHE_FORMAT.md gives it: header, table, sections in one fixed
// order, all numbers little-endian.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

namespace precis {

// Numbers are copied to and from files as they lie in memory.
static_assert(std::endian::native == std::endian::little);

inline constexpr char kCacheMagic[8] = {'P', 'R', 'E', 'C', 'I', 'S', 'K', 'V'};
inline constexpr std::uint32_t kCacheVersion = 1;
inline constexpr std::size_t kHeaderBytes = 64;
// Where the checksum of the header's other bytes is.
inline constexpr std::size_t kHeaderChecksum = 56;
inline constexpr std::size_t kTableEntryBytes = 32;
// Sections, and arrays within them, begin at multiples of this; between them are zeros.
inline constexpr std::size_t kSectionAlignment = 64;

enum class SectionKind : std::uint32_t {
  kInfo = 1,
  kTokens,
  kText,
  kReport,
  kLogits,
  kShape,
  kRows
};

inline constexpr std::uint32_t kNoLayer = 0xffffffff;
// Sections that are there once, before those of the layers, and how many each layer has.
inline constexpr std::uint32_t kFileSections = 5;
inline constexpr std::uint32_t kLayerSections = 2;

struct Section {
  SectionKind kind = SectionKind::kInfo;
  std::uint32_t layer = kNoLayer;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;  // without the zeros behind it
  std::uint64_t checksum = 0;

  // Of checksums, so that sections that change places are damage.
  std::uint64_t seed() const {
    return static_cast<std::uint64_t>(kind) << 32 | static_cast<std::uint64_t>(layer);
  }
  // For messages: "section 'rows' of layer 3".
  std::string name() const;
};

// Saturates instead of wrapping around.
constexpr std::uint64_t padded(std::uint64_t bytes) {
  const std::uint64_t more = bytes % kSectionAlignment;
  if (more == 0) return bytes;
  return bytes > UINT64_MAX - kSectionAlignment ? UINT64_MAX : bytes + (kSectionAlignment - more);
}

// All sections of a file of n_layers layers, in order; kind and layer only.
std::vector<Section> section_order(std::size_t n_layers);
// Index in that order.
constexpr std::size_t section_index(SectionKind kind, std::size_t layer = 0) {
  const auto i = static_cast<std::size_t>(kind) - 1;
  return i < kFileSections ? i : i + layer * kLayerSections;
}

}  // namespace precis
