// What a model is asked and how its answer is judged: the form that every task suite brings its
// samples into. Nothing here knows a model; token counts come through TokenCodec.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace precis {

// The tokenizer of the model under test, for texts of an asked length. Text never becomes control
// tokens, and no begin-of-text token is added. decode(encode(text)) == text for valid UTF-8.
struct TokenCodec {
  std::function<std::vector<std::int32_t>(std::string_view)> encode;
  std::function<std::string(std::span<const std::int32_t>)> decode;

  std::size_t count(std::string_view text) const { return encode(text).size(); }
};

// How an answer becomes a score in [0, 1].
enum class Metric {
  kContainAll,      // share of the references contained in the answer
  kContainAny,      // 1 if any reference is contained
  kF1,              // best token F1 over the references
  kRougeL,          // best ROUGE-L F over the references
  kClassification,  // LongBench's class matching
  kCount,           // share of the answer's numbers that are the right one
  kRetrieval,       // share of the answer's numbers that are the right paragraph
  kEditSimilarity,  // of the first line of code
};

// "contain_all" ...: the names in result files.
const char* metric_name(Metric metric);
std::optional<Metric> find_metric(std::string_view name);

// What holds for every sample of a task.
struct TaskRule {
  Metric metric = Metric::kContainAll;
  std::size_t max_new_tokens = 128;
  bool use_template = true;      // false: this task goes without the chat template
  bool stop_at_newline = false;  // the answer ends with its first line, which is not empty
  bool first_line_only = false;  // only the first line that is not empty is judged
  std::optional<double> chance;  // the score of guessing, where it is known
};

// Several questions of a sample share its context, and thereby one prefill.
struct TaskQuestion {
  std::string text;           // read after the context; may be empty
  std::string answer_prefix;  // how the answer begins; the model goes on from it; may be empty
  std::vector<std::string> references;
  std::vector<std::string> classes;  // Metric::kClassification: all that could be the answer
};

struct TaskSample {
  std::string task;                     // "niah_single_1"
  std::size_t index = 0;                // within the task and length, from 0
  std::size_t length = 0;               // tokens asked for; 0: as long as it is
  std::string context;                  // what is condensed; not empty
  std::vector<TaskQuestion> questions;  // at least one
  std::size_t n_truncated = 0;          // tokens cut from the middle of the context
  TaskRule rule;
};

}  // namespace precis
