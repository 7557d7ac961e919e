#include "report/number_text.h"

#include <array>
#include <charconv>
#include <cmath>

namespace precis {
namespace {

constexpr double kAlwaysExponent = 1e15;

template <class... Format>
std::string print(double value, Format... format) {
  std::array<char, 64> buffer;
  const auto end =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, format...).ptr;
  return {buffer.data(), end};
}

std::string interval_text(const Interval& interval, double scale, int digits, bool with_sign) {
  const auto text = [&](double value) {
    return with_sign ? signed_text(scale * value, digits) : fixed_text(scale * value, digits);
  };
  return " [" + text(interval.low) + ", " + text(interval.high) + "]";
}

}  // namespace

std::string fixed_text(double value, int digits) {
  if (!std::isfinite(value)) return "-";
  if (std::abs(value) >= kAlwaysExponent) return print(value, std::chars_format::scientific, 1);
  std::string text = print(value, std::chars_format::fixed, digits);
  if (text.front() == '-' && text.find_first_not_of("-0.") == std::string::npos) text.erase(0, 1);
  return text;
}

std::string short_text(double value) {
  if (!std::isfinite(value)) return "-";
  const double size = std::abs(value);
  if (size != 0 && (size < 1e-4 || size >= 1e6))
    return print(value, std::chars_format::scientific, 1);
  if (size >= 100) return fixed_text(value, 0);
  if (size >= 10) return fixed_text(value, 1);
  if (size >= 1 || size == 0) return fixed_text(value, 2);
  return print(value, std::chars_format::general, 3);
}

std::string signed_text(double value, int digits) {
  const std::string text = fixed_text(value, digits);
  const bool is_zero = text.find_first_not_of("0.") == std::string::npos;
  return value > 0 && !is_zero && text != "-" ? "+" + text : text;
}

std::string bytes_text(double bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (std::abs(bytes) >= 1024 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return fixed_text(bytes, unit == 0 || bytes >= 100 ? 0 : 1) + " " + kUnits[unit];
}

std::string percent_text(double share) { return fixed_text(100 * share, 1) + " %"; }

std::string estimate_text(const Estimate& estimate, double scale, int digits) {
  std::string out = fixed_text(scale * estimate.value, digits);
  if (estimate.interval) out += interval_text(*estimate.interval, scale, digits, false);
  return out;
}

std::string difference_text(const Estimate& estimate, double scale, int digits) {
  std::string out = signed_text(scale * estimate.value, digits);
  if (estimate.interval) out += interval_text(*estimate.interval, scale, digits, true);
  return out;
}

std::string shorten(std::string_view text, std::size_t most_bytes) {
  std::size_t n = text.size();
  if (n > most_bytes) {
    n = most_bytes;
    while (n > 0 && (static_cast<unsigned char>(text[n]) & 0xc0) == 0x80) --n;
  }
  std::string out(text.substr(0, n));
  for (char& c : out)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  if (n < text.size()) out += "...";
  return out;
}

}  // namespace precis
