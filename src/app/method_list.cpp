#include "app/method_list.h"

#include <algorithm>

#include "app/number_list.h"
#include "base/error.h"
#include "methods/registry.h"
#include "report/budget_file.h"

namespace precis::app {
namespace {

std::vector<RowType> parse_row_types(const std::vector<std::string>& names) {
  std::vector<RowType> out;
  for (const std::string& name : names) {
    const auto found = find_row_type(name);
    if (!found)
      throw Error(ErrorCode::kInvalidArgument,
                  concat("unknown cache type '", name, "'; possible: ", row_type_names()));
    out.push_back(*found);
  }
  if (out.empty()) throw Error(ErrorCode::kInvalidArgument, "no cache type is given");
  return out;
}

}  // namespace

std::vector<std::string> split_all(const std::vector<std::string>& texts,
                                   const std::string& standard) {
  if (texts.empty()) return split_list(standard);
  std::vector<std::string> out;
  for (const std::string& text : texts)
    for (std::string& part : split_list(text)) out.push_back(std::move(part));
  return out;
}

Method parse_method(const std::string& spec) {
  return builtin_methods().parse(
      spec, [](const std::string& path) { return read_budget_file(path).shares; });
}

std::vector<std::string> without_files(std::vector<std::string> specs) {
  const Registry registry = builtin_methods();
  for (std::string& spec : specs) {
    const bool names_file =
        std::any_of(registry.file_stages().begin(), registry.file_stages().end(),
                    [&](const Registry::FileStage& stage) {
                      return spec.find(concat(stage_kind_name(stage.kind), "=", stage.name, "(")) !=
                             std::string::npos;
                    });
    if (names_file) spec = parse_method(spec).spec;
  }
  return specs;
}

std::vector<EvalMethod> parse_methods(const std::vector<std::string>& specs,
                                      const std::vector<std::string>& keeps,
                                      const std::vector<std::string>& types_k,
                                      const std::vector<std::string>& types_v) {
  const std::vector<RowType> keys = parse_row_types(types_k);
  const std::vector<RowType> values = parse_row_types(types_v);
  std::vector<EvalMethod> out;
  for (const std::string& spec : specs) {
    const Method method = parse_method(spec);
    for (const std::string& keep : keeps) {
      for (const RowType k : keys)
        for (const RowType v : values) out.push_back({method, Budget::parse(keep), spec, {k, v}});
      if (method.is_full()) break;
    }
  }
  if (out.empty()) throw Error(ErrorCode::kInvalidArgument, "no method with a budget is given");
  return out;
}

}  // namespace precis::app
