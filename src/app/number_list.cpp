#include "app/number_list.h"

#include <charconv>
#include <optional>
#include <string_view>

#include "base/error.h"

namespace precis::app {
namespace {

constexpr std::size_t kMostNumbers = 1000;

// Takes digits off the front.
std::optional<std::size_t> take_number(std::string_view& text) {
  std::size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end == text.data()) return {};
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

// Numbers of one part; nothing if it is not a number or a range that goes up.
std::optional<std::vector<std::size_t>> parse_part(std::string_view text) {
  const auto first = take_number(text);
  if (!first) return {};
  if (text.empty()) return std::vector<std::size_t>{*first};
  if (text.front() != '-') return {};
  text.remove_prefix(1);
  const auto last = take_number(text);
  if (!last || *last < *first) return {};
  char how = '+';
  std::size_t step = 1;
  if (!text.empty()) {
    how = text.front();
    text.remove_prefix(1);
    const auto given = take_number(text);
    if ((how != '+' && how != '*') || !given || !text.empty()) return {};
    step = *given;
  }
  if (how == '+' ? step == 0 : (step < 2 || *first == 0)) return {};
  std::vector<std::size_t> out;
  for (std::size_t n = *first; n <= *last && out.size() <= kMostNumbers;) {
    out.push_back(n);
    const std::size_t next = how == '+' ? n + step : n * step;
    if (next <= n || (how == '*' && next / step != n)) break;  // overflow
    n = next;
  }
  return out;
}

}  // namespace

std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> parts(1);
  int depth = 0;
  bool in_quotes = false;  // a path in a SPEC
  for (const char c : text) {
    if (c == '"') in_quotes = !in_quotes;
    if (c == '(' && !in_quotes) ++depth;
    if (c == ')' && !in_quotes) --depth;
    if (c == ',' && depth <= 0 && !in_quotes)
      parts.emplace_back();
    else
      parts.back() += c;
  }
  std::vector<std::string> out;
  for (const std::string& part : parts) {
    const std::size_t first = part.find_first_not_of(" \t");
    if (first == std::string::npos) continue;
    out.push_back(part.substr(first, part.find_last_not_of(" \t") + 1 - first));
  }
  return out;
}

std::vector<std::size_t> parse_numbers(const std::string& option,
                                       const std::vector<std::string>& texts, std::size_t minimum,
                                       std::size_t maximum) {
  std::vector<std::size_t> out;
  const auto refuse = [&](const std::string& text) {
    throw Error(ErrorCode::kInvalidArgument,
                concat(option, ": '", text.substr(0, 40), "' is not a list of numbers from ",
                       minimum, " to ", maximum, " (\"512,2048\", \"1-4\", \"1024-8192*2\")"));
  };
  for (const std::string& text : texts) {
    const std::vector<std::string> parts = split_list(text);
    if (parts.empty()) refuse(text);
    for (const std::string& part : parts) {
      const auto numbers = parse_part(part);
      if (!numbers) refuse(part);
      for (const std::size_t n : *numbers) {
        if (n < minimum || n > maximum || out.size() >= kMostNumbers) refuse(part);
        out.push_back(n);
      }
    }
  }
  return out;
}

}  // namespace precis::app
