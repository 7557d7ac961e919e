#include "base/fields.h"

#include <charconv>
#include <cmath>

#include "base/error.h"

namespace precis {
namespace {

[[noreturn]] void reject(std::string_view name, std::string_view text, const std::string& domain) {
  throw Error(ErrorCode::kInvalidArgument,
              concat("parameter '", name, "' = '", text, "' is not in ", domain));
}

template <class T>
void assign_number(std::string_view name, std::string_view text, double minimum, double maximum,
                   T& field) {
  T value{};
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = status == std::errc{} && end == text.data() + text.size();
  if (!whole || !(static_cast<double>(value) >= minimum && static_cast<double>(value) <= maximum))
    reject(name, text, print_number(minimum) + ".." + print_number(maximum));
  field = value;
}

}  // namespace

std::string print_number(double value) {
  char buffer[64];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value);
  return std::string(buffer, result.ptr);
}

void assign_field(std::string_view name, std::string_view text, double minimum, double maximum,
                  int& field) {
  assign_number(name, text, minimum, maximum, field);
}

void assign_field(std::string_view name, std::string_view text, double minimum, double maximum,
                  double& field) {
  assign_number(name, text, minimum, maximum, field);
}

std::string print_numbers(const std::vector<double>& values) {
  std::string out;
  for (const double value : values) out += (out.empty() ? "" : "-") + print_number(value);
  return out;
}

void assign_field(std::string_view name, std::string_view text, double minimum, double maximum,
                  std::vector<double>& field) {
  std::vector<double> values;
  for (std::string_view rest = text;;) {
    const std::size_t end = std::min(rest.find('-'), rest.size());
    double& value = values.emplace_back();
    assign_number(name, rest.substr(0, end), minimum, maximum, value);
    // Smaller ones are printed with an exponent, whose sign is the separator.
    if (value != 0 && value < 1e-3) reject(name, text, "0 or 0.001 and more");
    if (end == rest.size()) break;
    rest.remove_prefix(end + 1);
  }
  field = std::move(values);
}

void assign_field(std::string_view name, std::string_view text,
                  std::initializer_list<const char*> choices, std::string& field) {
  std::string domain;
  for (const char* choice : choices) {
    if (text == choice) {
      field = choice;
      return;
    }
    domain += (domain.empty() ? "" : "|") + std::string(choice);
  }
  reject(name, text, domain);
}

}  // namespace precis
