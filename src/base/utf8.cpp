#include "base/utf8.h"

#include <cstdint>

namespace precis {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

struct Lead {
  std::size_t length;           // bytes of the whole character, 0: not a lead byte
  std::uint8_t second_minimum;  // allowed range of the second byte; later ones are 80..BF
  std::uint8_t second_maximum;
};

// Table 3-7 of the Unicode standard: well-formed UTF-8 byte sequences.
Lead lead_of(std::uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte >= 0xC2 && byte <= 0xDF) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

std::string Utf8Assembler::push(std::string_view bytes) {
  pending_.append(bytes);
  std::string out;
  std::size_t i = 0;
  while (i < pending_.size()) {
    const Lead lead = lead_of(static_cast<std::uint8_t>(pending_[i]));
    std::size_t n = 1;  // length of the well-formed beginning at i
    while (n < lead.length && i + n < pending_.size()) {
      const auto byte = static_cast<std::uint8_t>(pending_[i + n]);
      const std::uint8_t minimum = n == 1 ? lead.second_minimum : 0x80;
      const std::uint8_t maximum = n == 1 ? lead.second_maximum : 0xBF;
      if (byte < minimum || byte > maximum) break;
      ++n;
    }
    if (n == lead.length) {
      out.append(pending_, i, n);
    } else if (lead.length != 0 && i + n == pending_.size()) {
      break;  // may still become whole
    } else {
      out.append(kReplacement);
      ++n_replaced_;
    }
    i += n;
  }
  pending_.erase(0, i);
  return out;
}

std::string Utf8Assembler::finish() {
  if (pending_.empty()) return {};
  pending_.clear();
  ++n_replaced_;
  return std::string(kReplacement);
}

}  // namespace precis
