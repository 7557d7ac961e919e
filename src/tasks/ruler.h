// The 13 tasks of RULER (Hsieh et al. 2024, arXiv 2404.06654), generated in the tokens of the model
// under test. Structure, counts and scoring are the published ones; wording, word lists and the
// noise text are our own. docs/EVALUATION_RULER.md has the table, and what differs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tasks/qa_set.h"
#include "tasks/sample.h"

namespace precis {

// What the tasks are made from beyond what is generated. What is missing leaves tasks out.
struct RulerMaterials {
  std::string essay;  // plain text for haystacks; one without a word counts as missing
  QaSet squad;        // qa_1
  QaSet hotpot;       // qa_2
};

// niah_single_1 ... 3, niah_multikey_1 ... 3, niah_multivalue, niah_multiquery, vt, cwe, fwe, qa_1,
// qa_2.
std::vector<std::string> ruler_task_names();

// Why the task cannot be made of these materials; nothing if it can. Throws Error(kInvalidArgument)
// for an unknown task, as make_ruler_sample does.
std::optional<std::string> ruler_missing(std::string_view task, const RulerMaterials& materials);

// One sample with one question. `length` counts the tokens of context, question and answer prefix,
// each by itself, and rule.max_new_tokens; it is met within 1 % (above 512 tokens, with a codec
// that makes at most 6 tokens of any word of 4 letters). The context ends with a blank line and the
// question with a line break, so that the parts can be put one after the other.
//   The same arguments give the same bytes on every platform. Keys, values and words are drawn from
// (seed, task, index), whatever the length; which questions qa_1 and qa_2 choose from depends on
// what fits the length.
//   Throws Error(kInvalidArgument) for an unknown task (lists the known ones), one without its
// material, a length that is too small (with the least, in tokens) and one above 2^20.
TaskSample make_ruler_sample(std::string_view task, std::size_t length, std::size_t index,
                             std::uint64_t seed, const TokenCodec& codec,
                             const RulerMaterials& materials);

// One number with its key at a depth of 0 (beginning) to 100 percent (end) of the essay, repeated
// as needed, or of the noise text if the essay has no word. The task's name is "needle_depth_50",
// say; length, rule and errors as above.
TaskSample make_needle_sample(double depth_percent, std::size_t length, std::size_t index,
                              std::uint64_t seed, const TokenCodec& codec,
                              const std::string& essay);

}  // namespace precis
