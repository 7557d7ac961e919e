#include "app/audit_table.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "report/number_text.h"
#include "report/table.h"

namespace precis::app {
namespace {

using Json = nlohmann::ordered_json;

std::string label_of(const AuditOptions& options, std::size_t method) {
  return options.methods[method].label;
}

// "keys", "values", "biases" with how many entries differ in them.
std::string differing_numbers(const CachePair& pair) {
  std::string out;
  const auto add = [&out](std::size_t n, const char* what) {
    if (n > 0) out += concat(out.empty() ? "" : ", ", what, " of ", n);
  };
  add(pair.n_keys, "keys");
  add(pair.n_values, "values");
  add(pair.n_biases, "biases");
  return out;
}

// What a pair with the same entries means for one of its methods.
std::string same_set_text(const CachePair& pair, const std::string& other) {
  switch (pair.relation) {
    case CacheRelation::kSameCache:
      return "FAULT: same cache as " + other;
    case CacheRelation::kSameEntries:
      return "FAULT: same set as " + other + " by other stages; other " + differing_numbers(pair);
    case CacheRelation::kOtherNumbers:
      return "same set as " + other + " by design; other " + differing_numbers(pair);
    case CacheRelation::kOtherEntries:
      break;
  }
  return "";
}

std::string same_sets(const MethodAudit& audit, const AuditOptions& options, std::size_t method) {
  std::string out;
  for (std::size_t other = 0; other < options.methods.size(); ++other) {
    if (other == method) continue;
    const std::string text = same_set_text(audit.pair(method, other), label_of(options, other));
    if (!text.empty()) out += (out.empty() ? "" : "; ") + text;
  }
  return out.empty() ? "its own set" : out;
}

TableCell text_cell(std::string text) { return {std::move(text), {}, CellMark::kNone}; }

Json to_json(const CachePair& pair, const AuditOptions& options) {
  return {{"first", label_of(options, pair.first)},
          {"second", label_of(options, pair.second)},
          {"overlap", pair.overlap()},
          {"n_both", pair.n_both},
          {"n_either", pair.n_either},
          {"relation", cache_relation_name(pair.relation)},
          {"n_keys_differ", pair.n_keys},
          {"n_values_differ", pair.n_values},
          {"n_biases_differ", pair.n_biases},
          {"fault", pair.is_fault()}};
}

}  // namespace

std::string print_audit(const MethodAudit& audit, const AuditOptions& options,
                        const AuditSetting& setting) {
  Table table;
  table.caption = concat("What ", options.methods.size(), " methods keep of the first ",
                         audit.n_tokens, " tokens of ", setting.text, " at ", setting.keep);
  table.columns = {{"method", false, ""},
                   {"entries", true, ""},
                   {"nearest", false, ""},
                   {"overlap", true, ""},
                   {"told apart by", false, ""}};
  for (std::size_t m = 0; m < options.methods.size(); ++m) {
    const std::size_t nearest = audit.nearest(m);
    const double overlap = audit.pair(m, nearest).overlap();
    table.rows.push_back({text_cell(label_of(options, m)),
                          text_cell(std::to_string(audit.n_entries[m])),
                          text_cell(label_of(options, nearest)), text_cell(percent_text(overlap)),
                          text_cell(same_sets(audit, options, m))});
  }
  table.notes.push_back(
      "An entry is a layer, a KV head and a position. Overlap: of the entries that one or both "
      "keep, those that both keep.");
  if (audit.n_kv_heads == 1)
    table.notes.push_back(
        "This model has one KV head a layer: methods that differ in how heads share a budget keep "
        "the same there. Only a model with more heads tells them apart.");
  table.notes.push_back(concat("Model ", setting.model, ", sha256 ", setting.model_sha256,
                               ", seed ", setting.seed, "."));
  return print_markdown(table);
}

std::string audit_json(const MethodAudit& audit, const AuditOptions& options,
                       const AuditSetting& setting) {
  Json methods = Json::array();
  for (std::size_t m = 0; m < options.methods.size(); ++m) {
    const std::size_t nearest = audit.nearest(m);
    methods.push_back({{"label", label_of(options, m)},
                       {"method", options.methods[m].method.spec},
                       {"selection", selection_stages(options.methods[m].method)},
                       {"n_entries", audit.n_entries[m]},
                       {"nearest", label_of(options, nearest)},
                       {"overlap", audit.pair(m, nearest).overlap()}});
  }
  Json pairs = Json::array();
  std::size_t n_faults = 0;
  for (const CachePair& pair : audit.pairs) {
    pairs.push_back(to_json(pair, options));
    n_faults += pair.is_fault() ? 1 : 0;
  }
  const Json out = {{"model", setting.model},
                    {"model_sha256", setting.model_sha256},
                    {"text", setting.text},
                    {"n_tokens", audit.n_tokens},
                    {"keep", setting.keep},
                    {"seed", setting.seed},
                    {"n_kv_heads", audit.n_kv_heads},
                    {"methods", methods},
                    {"pairs", pairs},
                    {"n_faults", n_faults}};
  return out.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string audit_faults(const MethodAudit& audit, const AuditOptions& options) {
  std::string out;
  for (const CachePair& pair : audit.pairs) {
    if (!pair.is_fault()) continue;
    out += concat(out.empty() ? "" : "; ", "'", label_of(options, pair.first), "' and '",
                  label_of(options, pair.second), "' ",
                  pair.relation == CacheRelation::kSameCache
                      ? "leave the same cache"
                      : "keep the same entries although their stages differ");
  }
  return out;
}

}  // namespace precis::app
