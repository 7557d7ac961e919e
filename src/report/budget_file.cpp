#include "report/budget_file.h"

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace precis {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "precis layer budgets";
constexpr int kVersion = 1;
// A search of 50,000 candidates takes 1 MB.
constexpr std::size_t kMaxBytes = std::size_t{4} << 20;
// What is printed has 3 levels and some 30 members. The JSON library looks members up one by one
// (80,000 took 21 s) and writes nested values by recursion (100,000 levels overran the stack).
constexpr int kDeepest = 8;
constexpr std::size_t kMostMembers = 1000;
// What layers=weights takes.
constexpr double kLeastShare = 1e-3;
constexpr double kMostShare = 1e6;

class Reader {
 public:
  Reader(std::string_view text, const std::string& name) : name_(name) {
    std::size_t n_members = 0;
    const auto check_size = [&](int depth, Json::parse_event_t event, Json&) {
      if (depth > kDeepest) reject(concat("nested more than ", kDeepest, " deep"));
      if (event == Json::parse_event_t::key && ++n_members > kMostMembers)
        reject(concat("more than ", kMostMembers, " members"));
      return true;
    };
    try {
      json_ = Json::parse(text, check_size);
    } catch (const Json::parse_error& error) {
      const std::string_view before = text.substr(0, error.byte > 0 ? error.byte - 1 : 0);
      std::size_t line = 1;
      for (const char c : before) line += c == '\n' ? 1 : 0;
      const std::size_t begin = before.rfind('\n') + 1;  // npos + 1 is 0
      reject(concat("line ", line, ", column ", before.size() - begin + 1, ": not JSON"));
    } catch (const Json::exception&) {
      reject("not JSON");
    }
    if (!json_.is_object()) reject("not a JSON object");
  }

  [[noreturn]] void reject(const std::string& why) const {
    throw Error(ErrorCode::kFormat, concat("layer budgets '", name_, "': ", why,
                                           "; 'precis eval evolve' writes such files"));
  }

  const Json& root() const { return json_; }

  const Json& member(const Json& object, const char* key) const {
    const auto found = object.find(key);
    if (found == object.end()) reject(concat("member '", key, "' is missing"));
    return *found;
  }
  std::string text(const Json& object, const char* key) const {
    return text(member(object, key), std::string(key));
  }
  std::string text(const Json& value, const std::string& key) const {
    if (!value.is_string()) reject(concat("'", key, "' is not a text: ", shown(value)));
    return value.get<std::string>();
  }
  std::size_t count(const Json& object, const char* key) const {
    const Json& value = member(object, key);
    if (!value.is_number_unsigned())
      reject(concat("'", key, "' is not a whole number: ", shown(value)));
    return value.get<std::size_t>();
  }
  std::vector<double> numbers(const Json& object, const char* key) const {
    const Json& value = member(object, key);
    if (!value.is_array()) reject(concat("'", key, "' is not a list: ", shown(value)));
    std::vector<double> out;
    for (const Json& item : value) {
      if (!item.is_number() || !std::isfinite(item.get<double>()))
        reject(concat("'", key, "'[", out.size(), "] is not a finite number: ", shown(item)));
      out.push_back(item.get<double>());
    }
    return out;
  }

 private:
  static std::string shown(const Json& value) {
    const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
    return text.size() > 40 ? text.substr(0, 40) + "..." : text;
  }

  std::string name_;
  Json json_;
};

void check_shares(const Reader& reader, const BudgetFile& file, std::size_t n_layers) {
  const std::size_t n = file.shares.size();
  if (n == 0) reader.reject("'shares' is empty: one is needed for each layer");
  if (n > kMostBudgetLayers)
    reader.reject(concat("'shares' has ", n, " numbers, at most ", kMostBudgetLayers,
                         " layers are supported"));
  if (n != n_layers)
    reader.reject(concat("'n_layers' is ", n_layers, " but 'shares' has ", n, " numbers"));
  double sum = 0;
  for (std::size_t l = 0; l < n; ++l) {
    const double share = file.shares[l];
    if (!(share == 0 || (share >= kLeastShare && share <= kMostShare)))
      reader.reject(concat("'shares'[", l, "] is ", share, ", which is neither 0 nor from ",
                           kLeastShare, " to ", kMostShare));
    sum += share;
  }
  if (sum == 0) reader.reject("all 'shares' are 0");
}

}  // namespace

BudgetFile parse_budget_file(std::string_view text, const std::string& name) {
  const Reader reader(text, name);
  const Json& root = reader.root();
  if (const std::string format = reader.text(root, "format"); format != kFormat)
    reader.reject(concat("'format' is not \"", kFormat, "\""));
  if (const std::size_t version = reader.count(root, "version"); version != kVersion)
    reader.reject(concat("'version' is ", version, ", this program reads ", kVersion));
  BudgetFile file;
  file.model = reader.text(root, "model");
  file.model_sha256 = reader.text(root, "model_sha256");
  file.shares = reader.numbers(root, "shares");
  check_shares(reader, file, reader.count(root, "n_layers"));
  if (!root.contains("search")) return file;
  const Json& search = root["search"];
  if (!search.is_object()) reader.reject("'search' is not an object");
  const Json& settings = reader.member(search, "settings");
  if (!settings.is_object()) reader.reject("'settings' is not an object");
  for (const auto& [key, value] : settings.items())
    file.search.settings.emplace_back(key, reader.text(value, key));
  file.search.values = reader.numbers(search, "values");
  const Json& finished = reader.member(search, "finished");
  if (!finished.is_boolean()) reader.reject("'finished' is neither true nor false");
  file.search.finished = finished.get<bool>();
  return file;
}

std::string print_budget_file(const BudgetFile& file) {
  // One member a line, so that the file can be read and compared.
  std::string out = "{\n";
  const auto add = [&out](const char* key, const Json& value, const char* end = ",\n") {
    // Names of files need not be UTF-8.
    const std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
    out += concat(" ", Json(key).dump(), ": ", text, end);
  };
  const bool searched = !file.search.empty();
  add("format", kFormat);
  add("version", kVersion);
  add("model", file.model);
  add("model_sha256", file.model_sha256);
  add("n_layers", file.shares.size());
  add("shares", file.shares, searched ? ",\n" : "\n");
  if (searched) {
    Json search;
    Json& settings = search["settings"] = Json::object();
    for (const auto& [key, value] : file.search.settings) settings[key] = value;
    search["finished"] = file.search.finished;
    search["values"] = file.search.values;
    add("search", search, "\n");
  }
  return out + "}\n";
}

BudgetFile read_budget_file(const std::string& path) {
  const auto refuse = [&path](const std::string& why) {
    throw Error(ErrorCode::kIo, concat("cannot read the layer budgets '", path, "': ", why));
  };
  std::error_code failed;
  const auto status = std::filesystem::status(path, failed);
  if (!std::filesystem::exists(status)) refuse("there is no such file");
  if (!std::filesystem::is_regular_file(status)) refuse("it is not a regular file");
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             std::fclose);
  if (!file) refuse(std::strerror(errno));
  std::string text(kMaxBytes + 1, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  if (std::ferror(file.get()) != 0) refuse(std::strerror(errno));
  if (text.size() > kMaxBytes)
    refuse(concat("it has more than ", kMaxBytes, " bytes: these are not layer budgets"));
  return parse_budget_file(text, path);
}

}  // namespace precis
