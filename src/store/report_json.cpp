#include "store/report_json.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace precis {
namespace {

// Members sorted by name: looking one up among many is no matter.
using Json = nlohmann::json;

// What is written has 4 levels; the JSON library frees nested values by recursion.
constexpr int kDeepest = 8;

struct Unfit {
  std::string why;
};

// Visits every member by name, for writing and for reading, so that neither can forget one.
template <class Report, class Visitor>
void visit(Report& r, Visitor&& v) {
  v("skipped", r.skipped);
  v("n_tokens", r.n_tokens);
  v("dense_bytes", r.dense_bytes);
  v("kept_bytes", r.kept_bytes);
  v("entries", r.entries);
  v("key_types", r.key_types);
  v("key_errors", r.key_errors);
  v("most_held_bytes", r.most_held_bytes);
  v("n_routed", r.n_routed);
  v("n_dropped", r.n_dropped);
  v("n_floored", r.n_floored);
  v("residuals", r.residuals);
  v("residual_skipped", r.residual_skipped);
  v("repeat_ms", r.repeat_ms);
  v("score_ms", r.score_ms);
  v("select_ms", r.select_ms);
  v("merge_ms", r.merge_ms);
  v("residual_ms", r.residual_ms);
  v("freeze_ms", r.freeze_ms);
}

template <class Residual, class Visitor>
void visit_residual(Residual& r, Visitor&& v) {
  v("entries", r.n_entries);
  v("error_before", r.error_before);
  v("error_after", r.error_after);
  v("evicted_mass", r.evicted_mass);
  v("restored_mass", r.restored_mass);
  v("gate_factor", r.gate_factor);
  v("gate_low", r.gate.low);
  v("gate_high", r.gate.high);
  v("gate_least", r.gate.least);
}

Json written(std::size_t value) { return value; }
Json written(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }
Json written(float value) { return written(static_cast<double>(value)); }
Json written(RowType value) { return row_type_name(value); }
Json written(const std::optional<std::string>& value) {
  return value ? Json(*value) : Json(nullptr);
}
Json written(const ResidualReport& value) {
  Json out = Json::object();
  visit_residual(value, [&](const char* name, const auto& member) { out[name] = written(member); });
  return out;
}
template <class T>
Json written(const std::vector<T>& values) {
  Json out = Json::array();
  for (const T& value : values) out.push_back(written(value));
  return out;
}

void read(const Json& from, std::size_t& to) {
  if (!from.is_number_unsigned()) throw Unfit{"is not a count"};
  to = from.get<std::size_t>();
}
void read(const Json& from, double& to) {
  if (from.is_null()) {  // written for what is no finite number
    to = std::numeric_limits<double>::quiet_NaN();
    return;
  }
  if (!from.is_number()) throw Unfit{"is not a number"};
  to = from.get<double>();
}
void read(const Json& from, float& to) {
  double wide = 0;
  read(from, wide);
  to = static_cast<float>(wide);
}
void read(const Json& from, RowType& to) {
  const auto type = from.is_string() ? find_row_type(from.get<std::string>()) : std::nullopt;
  if (!type) throw Unfit{"is not a row type"};
  to = *type;
}
void read(const Json& from, std::optional<std::string>& to) {
  to.reset();
  if (from.is_null()) return;
  if (!from.is_string()) throw Unfit{"is not a text"};
  to = from.get<std::string>();
}
void read(const Json& from, ResidualReport& to);
template <class T>
void read(const Json& from, std::vector<T>& to) {
  if (!from.is_array()) throw Unfit{"is not a list"};
  to.clear();
  for (const Json& item : from) read(item, to.emplace_back());
}

// For visit(): reads a member of `object`.
auto reader_of(const Json& object) {
  return [&object](const char* name, auto& member) {
    const auto found = object.find(name);
    if (found == object.end()) throw Unfit{concat("member '", name, "' is missing")};
    try {
      read(*found, member);
    } catch (const Unfit& unfit) {
      throw Unfit{concat("'", name, "' ", unfit.why)};
    }
  };
}

void read(const Json& from, ResidualReport& to) {
  if (!from.is_object()) throw Unfit{"is not an object"};
  visit_residual(to, reader_of(from));
}

}  // namespace

std::string report_json(const CompressionReport& report) {
  Json out = Json::object();
  visit(report, [&](const char* name, const auto& member) { out[name] = written(member); });
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::optional<std::string> parse_report(std::string_view text, CompressionReport& report) {
  // The JSON library takes it for the end.
  if (text.find('\0') != std::string_view::npos) return "the report is not JSON: it has a byte 0";
  try {
    const Json json = Json::parse(text, [](int depth, Json::parse_event_t, Json&) {
      if (depth > kDeepest) throw Unfit{concat("is nested more than ", kDeepest, " deep")};
      return true;
    });
    if (!json.is_object()) return "the report is not a JSON object";
    visit(report, reader_of(json));
  } catch (const Unfit& unfit) {
    return concat("the report: ", unfit.why);
  } catch (const Json::exception&) {
    return "the report is not JSON";
  }
  return {};
}

}  // namespace precis
