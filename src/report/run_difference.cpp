#include "report/run_difference.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"

namespace precis {

using Json = nlohmann::ordered_json;

std::optional<std::string> run_difference(const RunRow& a, const RunRow& b) {
  const Json x = Json::parse(print_row(a));
  const Json y = Json::parse(print_row(b));
  for (const auto& item : x.items()) {
    const Json& other = y.at(item.key());
    if (item.value() == other) continue;
    std::string name = item.key();
    if (item.value().is_object()) {
      for (const auto& inner : item.value().items())
        if (!other.contains(inner.key()) || other.at(inner.key()) != inner.value())
          return concat("field '", name, ".", inner.key(), "' is ", inner.value().dump(), " and ",
                        other.contains(inner.key()) ? other.at(inner.key()).dump() : "missing");
      for (const auto& inner : other.items())
        if (!item.value().contains(inner.key()))
          return concat("field '", name, ".", inner.key(), "' is missing and ",
                        inner.value().dump());
    }
    return concat("field '", name, "' is ", item.value().dump(), " and ", other.dump());
  }
  return {};
}

RunRow without_shard(RunRow run) {
  run.shard = run.n_shards = 1;
  return run;
}

std::optional<std::string> run_difference_beside_shard(const RunRow& a, const RunRow& b) {
  return run_difference(without_shard(a), without_shard(b));
}

}  // namespace precis
