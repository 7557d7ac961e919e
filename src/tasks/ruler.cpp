#include "tasks/ruler.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "tasks/ruler_drafts.h"

namespace precis {
namespace {

enum class Need { kNothing, kEssay, kSquad, kHotpot };

struct RulerTask {
  const char* name;
  Need need;
  std::optional<SampleDraft> (*draft)(const RulerRequest&, std::size_t attempt);
  Metric metric;
  std::size_t max_new_tokens;
  // The chance of a word or variable depends on what an answer lists; of 9 million numbers there
  // is none.
  std::optional<double> chance;
};

constexpr std::optional<double> kUnknown = std::nullopt;

constexpr RulerTask kTasks[] = {
    {"niah_single_1", Need::kNothing, draft_needles, Metric::kContainAll, 128, 0.0},
    {"niah_single_2", Need::kEssay, draft_needles, Metric::kContainAll, 128, 0.0},
    {"niah_single_3", Need::kEssay, draft_needles, Metric::kContainAll, 128, 0.0},
    {"niah_multikey_1", Need::kEssay, draft_needles, Metric::kContainAll, 128, 0.0},
    {"niah_multikey_2", Need::kNothing, draft_needles, Metric::kContainAll, 128, 0.0},
    {"niah_multikey_3", Need::kNothing, draft_needles, Metric::kContainAll, 128, 0.0},
    {"niah_multivalue", Need::kEssay, draft_needles, Metric::kContainAll, 128, 0.0},
    {"niah_multiquery", Need::kEssay, draft_needles, Metric::kContainAll, 128, 0.0},
    {"vt", Need::kNothing, draft_chain, Metric::kContainAll, 30, kUnknown},
    {"cwe", Need::kNothing, draft_common_words, Metric::kContainAll, 120, kUnknown},
    {"fwe", Need::kNothing, draft_frequent_words, Metric::kContainAll, 50, kUnknown},
    {"qa_1", Need::kSquad, draft_documents, Metric::kContainAny, 32, kUnknown},
    {"qa_2", Need::kHotpot, draft_documents, Metric::kContainAny, 32, kUnknown},
};

const RulerTask& find_task(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kTasks), std::end(kTasks),
                                         [name](const RulerTask& t) { return t.name == name; });
  if (found != std::end(kTasks)) return *found;
  throw Error(ErrorCode::kInvalidArgument,
              concat("unknown RULER task '", name, "'; known: ", listed(ruler_task_names())));
}

TaskRule rule_of(const RulerTask& task) {
  TaskRule out;
  out.metric = task.metric;
  out.max_new_tokens = task.max_new_tokens;
  out.chance = task.chance;
  return out;
}

void check_length(const RulerRequest& request) {
  if (request.length <= kLongestSample) return;
  throw Error(ErrorCode::kInvalidArgument,
              concat("task '", request.task, "' is asked for in ", request.length,
                     " tokens; at most ", kLongestSample, " can be made"));
}

[[noreturn]] void refuse_length(const RulerRequest& request, std::size_t least,
                                std::size_t n_answer) {
  throw Error(ErrorCode::kInvalidArgument,
              concat("task '", request.task, "' cannot be made in ", request.length,
                     " tokens: it takes at least ", least, ", of them ", n_answer,
                     " for the answer; ask for longer samples"));
}

TaskSample named(TaskSample sample, const RulerRequest& request) {
  sample.task = request.task;
  sample.index = request.index;
  return sample;
}

}  // namespace

std::vector<std::string> ruler_task_names() {
  std::vector<std::string> out;
  for (const RulerTask& task : kTasks) out.emplace_back(task.name);
  return out;
}

std::optional<std::string> ruler_missing(std::string_view task, const RulerMaterials& materials) {
  switch (find_task(task).need) {
    case Need::kNothing:
      return {};
    case Need::kEssay:
      if (has_words(materials.essay)) return {};
      return "needs a plain text for its haystack (--essay FILE)";
    case Need::kSquad:
      if (!materials.squad.items.empty()) return {};
      return "needs questions in SQuAD's format (--squad FILE)";
    case Need::kHotpot:
      if (!materials.hotpot.items.empty()) return {};
      return "needs questions in HotpotQA's format (--hotpot FILE)";
  }
  return {};
}

TaskSample make_ruler_sample(std::string_view task, std::size_t length, std::size_t index,
                             std::uint64_t seed, const TokenCodec& codec,
                             const RulerMaterials& materials) {
  const RulerTask& found = find_task(task);
  if (const auto missing = ruler_missing(task, materials))
    throw Error(ErrorCode::kInvalidArgument, concat("task '", task, "' ", *missing));
  const RulerRequest request{task, length, index, seed, codec, materials};
  check_length(request);
  const TaskRule rule = rule_of(found);
  std::optional<std::size_t> least;
  for (std::size_t attempt = 0;; ++attempt) {
    const std::optional<SampleDraft> draft = found.draft(request, attempt);
    if (!draft) break;
    FittedSample fitted = fit_sample(*draft, rule, length, codec);
    if (fitted.fits) return named(std::move(fitted.sample), request);
    least = std::min(least.value_or(fitted.least_length), fitted.least_length);
  }
  refuse_length(request, least.value_or(0), rule.max_new_tokens);
}

TaskSample make_needle_sample(double depth_percent, std::size_t length, std::size_t index,
                              std::uint64_t seed, const TokenCodec& codec,
                              const std::string& essay) {
  if (!(depth_percent >= 0 && depth_percent <= 100))
    throw Error(ErrorCode::kInvalidArgument,
                concat("a needle's depth of ", depth_percent, " is not from 0 to 100 percent"));
  const std::string name = concat("needle_depth_", depth_percent);
  RulerMaterials materials;
  materials.essay = essay;
  const RulerRequest request{name, length, index, seed, codec, materials};
  check_length(request);
  const auto depth = static_cast<std::uint64_t>(depth_percent / 100 * double{kFullDepth});
  const TaskRule rule = rule_of(find_task("niah_single_2"));
  FittedSample fitted = fit_sample(draft_needle_at(depth, request), rule, length, codec);
  if (!fitted.fits) refuse_length(request, fitted.least_length, rule.max_new_tokens);
  return named(std::move(fitted.sample), request);
}

}  // namespace precis
