#include "tasks/sample.h"

#include <utility>

namespace precis {
namespace {

constexpr std::pair<Metric, const char*> kNames[] = {
    {Metric::kContainAll, "contain_all"},
    {Metric::kContainAny, "contain_any"},
    {Metric::kF1, "f1"},
    {Metric::kRougeL, "rouge_l"},
    {Metric::kClassification, "classification"},
    {Metric::kCount, "count"},
    {Metric::kRetrieval, "retrieval"},
    {Metric::kEditSimilarity, "edit_similarity"},
};

}  // namespace

const char* metric_name(Metric metric) {
  for (const auto& [known, name] : kNames)
    if (known == metric) return name;
  return "";
}

std::optional<Metric> find_metric(std::string_view name) {
  for (const auto& [metric, known] : kNames)
    if (name == known) return metric;
  return std::nullopt;
}

}  // namespace precis
