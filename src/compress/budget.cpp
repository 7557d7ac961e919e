#include "compress/budget.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>

#include "base/error.h"

namespace precis {
namespace {

struct ByteUnit {
  const char* name;
  std::uint64_t bytes;
};

// Binary units first: print() prefers them where both are equally short.
constexpr ByteUnit kByteUnits[] = {
    {"TiB", std::uint64_t{1} << 40},
    {"GiB", std::uint64_t{1} << 30},
    {"MiB", std::uint64_t{1} << 20},
    {"KiB", std::uint64_t{1} << 10},
    {"TB", 1'000'000'000'000},
    {"GB", 1'000'000'000},
    {"MB", 1'000'000},
    {"KB", 1'000},
    {"B", 1},
};

// Amounts stay well inside size_t and are exact as double.
constexpr double kMaxAmount = 9007199254740992.0;  // 2^53

// Keeps control characters and endless input out of messages.
std::string quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text.substr(0, 40)) out += (c >= ' ' && c <= '~') ? c : '?';
  return out + (text.size() > 40 ? "...'" : "'");
}

[[noreturn]] void reject(std::string_view text, const char* why) {
  throw Error(
      ErrorCode::kInvalidArgument,
      concat("keep ", quoted(text), ": ", why,
             "; accepted: a ratio above 0% up to 100% (\"25%\", \"0.25\"), a number of tokens "
             "per head from 1 (\"2048\"), or bytes from 1B (\"512MiB\", \"300MB\")"));
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  const auto lower = [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(),
                                            [&](char x, char y) { return lower(x) == lower(y); });
}

// Digits with at most one point; no sign, no exponent.
std::optional<double> plain_number(std::string_view text) {
  if (text.empty() || text.find_first_not_of("0123456789.") != std::string_view::npos) return {};
  double value = 0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value, std::chars_format::fixed);
  if (result.ec != std::errc{} || result.ptr != end) return {};
  return value;
}

std::string print_ratio(double ratio) {
  char buffer[1100];  // the longest double in fixed notation fits
  const auto fixed = [&](double value) {
    const auto result =
        std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed);
    return std::string(buffer, result.ptr);
  };
  const std::string percent = fixed(ratio * 100);
  if (plain_number(percent).value_or(-1) / 100 == ratio && percent.size() <= 8)
    return percent + "%";
  const std::string decimal = fixed(ratio);
  return decimal.find('.') == std::string::npos ? decimal + ".0" : decimal;
}

}  // namespace

Budget Budget::parse(std::string_view text) {
  const std::string_view whole = text;
  text = trim(text);
  Budget budget;
  if (!text.empty() && text.back() == '%') {
    const auto percent = plain_number(trim(text.substr(0, text.size() - 1)));
    if (!percent) reject(whole, "not a percentage");
    budget.ratio = *percent / 100;
    if (!(budget.ratio > 0 && budget.ratio <= 1)) reject(whole, "the percentage is out of range");
    return budget;
  }
  const std::size_t number_end = std::min(text.find_first_not_of("0123456789."), text.size());
  const auto number = plain_number(text.substr(0, number_end));
  if (!number) reject(whole, "not a number");
  const std::string_view suffix = trim(text.substr(number_end));
  if (suffix.empty() && text.find('.') != std::string_view::npos) {
    if (!(*number > 0 && *number <= 1)) reject(whole, "the ratio is out of range");
    budget.ratio = *number;
    return budget;
  }
  double scale = suffix.empty() ? 1.0 : 0.0;
  for (const ByteUnit& unit : kByteUnits)
    if (equal_ignoring_case(suffix, unit.name)) scale = static_cast<double>(unit.bytes);
  if (scale == 0.0) reject(whole, "unknown unit");
  const double amount = std::floor(*number * scale);
  if (!(amount >= 1 && amount <= kMaxAmount)) reject(whole, "the amount is out of range");
  budget.unit = suffix.empty() ? Unit::kTokens : Unit::kBytes;
  budget.amount = static_cast<std::size_t>(amount);
  return budget;
}

std::string Budget::print() const {
  if (unit == Unit::kRatio) return print_ratio(ratio);
  if (unit == Unit::kTokens) return std::to_string(amount);
  std::string shortest;
  for (const ByteUnit& candidate : kByteUnits) {
    if (amount % candidate.bytes != 0) continue;
    const std::string text = std::to_string(amount / candidate.bytes) + candidate.name;
    if (shortest.empty() || text.size() < shortest.size()) shortest = text;
  }
  return shortest;
}

std::size_t Budget::bytes(std::size_t dense_bytes, std::size_t n_tokens) const {
  switch (unit) {
    case Unit::kRatio: {
      if (ratio >= 1) return dense_bytes;
      // 0.29 * 100 is 28.999999999999996: what is meant as a whole number of bytes must be one.
      const double exact = ratio * static_cast<double>(dense_bytes);
      const double nearest = std::round(exact);
      const double allowed =
          std::abs(exact - nearest) <= 1e-12 * exact ? nearest : std::floor(exact);
      return std::min(dense_bytes, static_cast<std::size_t>(allowed));
    }
    case Unit::kTokens:
      return n_tokens == 0 || amount >= n_tokens ? dense_bytes : dense_bytes / n_tokens * amount;
    case Unit::kBytes:
      return std::min(dense_bytes, amount);
  }
  return dense_bytes;
}

}  // namespace precis
