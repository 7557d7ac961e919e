// The texts around document and question of LongBench's tasks: ours, or LongBench's own file.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace precis {

// A prompt is before_context + document + after_context, with the question between the items of
// the latter.
struct LongBenchPrompt {
  std::string before_context;
  std::vector<std::string> after_context;  // at least one item; one: the question does not occur

  // Everything after the document.
  std::string question(std::string_view input) const;
};

using LongBenchPrompts = std::map<std::string, LongBenchPrompt, std::less<>>;  // by task

// Whether the task's prompts have an {input}: all but gov_report, multi_news, passage_count, lcc.
bool has_longbench_input(std::string_view task);

// A text with the places {context} (once) and, after it, {input} (any number of times). As in
// Python's str.format, "{{" and "}}" stand for single braces. Throws Error(kFormat) that begins
// with `name` and says what is missing, unknown or in the wrong order; {input} is missing only if
// `needs_input`.
LongBenchPrompt parse_longbench_prompt(std::string_view text, bool needs_input,
                                       const std::string& name);

// Our own wording, for all 16 tasks.
LongBenchPrompts default_longbench_prompts();

// The form of LongBench's config/dataset2prompt.json: an object of texts by task. Other names than
// those of the 16 tasks are ignored. Throws Error(kFormat): not JSON (at which byte), not an
// object, a task's prompt is not text or not as parse_longbench_prompt() wants it (the task's
// name), or none of the 16 tasks is there.
LongBenchPrompts parse_longbench_prompts(std::string_view json_text);

}  // namespace precis
