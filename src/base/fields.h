// Declares an option once and derives parsing, printing and help from it.
//
//   struct TopParams {
//     int window = 32;
//     template <class V> void fields(V&& v) { v("window", window, 1, 4096, "queries observed"); }
//   };
//
// A visitor is called as v(name, field, minimum, maximum, help) for int and double fields and for
// lists of doubles (written 3-2-1: SPECs have no other sign to spare), and as
// v(name, field, choices, help) for a field that holds one of a fixed list of words (std::string).
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace precis {

// One option of a parameter struct, as text.
struct FieldInfo {
  std::string name;
  std::string value;   // current value, printed so that it parses back to the same number
  std::string domain;  // "1..4096" or "head|layer|off"
  std::string help;
};

// Shortest decimal text that parses back to the same double.
std::string print_number(double value);
// Numbers with - between them.
std::string print_numbers(const std::vector<double>& values);

// Sets one field from text. Throws Error(kInvalidArgument) that names the field, the text and the
// domain.
void assign_field(std::string_view name, std::string_view text, double minimum, double maximum,
                  int& field);
void assign_field(std::string_view name, std::string_view text, double minimum, double maximum,
                  double& field);
// At least one number, each 0 or at least 0.001. REQUIRES: minimum >= 0.
void assign_field(std::string_view name, std::string_view text, double minimum, double maximum,
                  std::vector<double>& field);
void assign_field(std::string_view name, std::string_view text,
                  std::initializer_list<const char*> choices, std::string& field);

namespace detail {

struct FieldLister {
  std::vector<FieldInfo> out;
  void operator()(const char* name, int& field, double minimum, double maximum, const char* help) {
    out.push_back(
        {name, std::to_string(field), print_number(minimum) + ".." + print_number(maximum), help});
  }
  void operator()(const char* name, double& field, double minimum, double maximum,
                  const char* help) {
    out.push_back(
        {name, print_number(field), print_number(minimum) + ".." + print_number(maximum), help});
  }
  void operator()(const char* name, std::vector<double>& field, double minimum, double maximum,
                  const char* help) {
    const std::string range = print_number(minimum) + ".." + print_number(maximum);
    out.push_back({name, print_numbers(field), range + "-" + range + "-...", help});
  }
  void operator()(const char* name, std::string& field, std::initializer_list<const char*> choices,
                  const char* help) {
    std::string domain;
    for (const char* c : choices) domain += (domain.empty() ? "" : "|") + std::string(c);
    out.push_back({name, field, domain, help});
  }
};

struct FieldSetter {
  std::string_view name;
  std::string_view text;
  bool found = false;
  template <class T>
  void operator()(const char* field_name, T& field, double minimum, double maximum, const char*) {
    if (name != field_name) return;
    found = true;
    assign_field(name, text, minimum, maximum, field);
  }
  void operator()(const char* field_name, std::string& field,
                  std::initializer_list<const char*> choices, const char*) {
    if (name != field_name) return;
    found = true;
    assign_field(name, text, choices, field);
  }
};

}  // namespace detail

template <class Params>
std::vector<FieldInfo> list_fields(const Params& params) {
  Params copy = params;
  detail::FieldLister lister;
  copy.fields(lister);
  return lister.out;
}

// Returns false if the struct has no field of that name.
template <class Params>
bool set_field(Params& params, std::string_view name, std::string_view text) {
  detail::FieldSetter setter{name, text};
  params.fields(setter);
  return setter.found;
}

}  // namespace precis
