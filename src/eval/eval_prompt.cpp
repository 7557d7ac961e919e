#include "eval/eval_prompt.h"

#include "base/error.h"
#include "engine/prompt.h"

namespace precis {
namespace {

// Moves the last n tokens of one list in front of another.
void move_end(std::vector<Token>& from, std::size_t n, std::vector<Token>& to) {
  const auto cut = from.end() - static_cast<std::ptrdiff_t>(n);
  to.insert(to.begin(), cut, from.end());
  from.erase(cut, from.end());
}

}  // namespace

const char* query_mode_name(QueryMode mode) {
  return mode == QueryMode::kAgnostic ? "agnostic" : "aware";
}

std::optional<QueryMode> find_query_mode(std::string_view name) {
  for (const QueryMode mode : {QueryMode::kAgnostic, QueryMode::kAware})
    if (name == query_mode_name(mode)) return mode;
  return std::nullopt;
}

EvalPrompt make_eval_prompt(const Engine& engine, const TaskSample& sample,
                            const TaskQuestion& question, bool use_template) {
  PreparedPrompt prompt = prepare_prompt(engine, sample.context, question.text,
                                         use_template && sample.rule.use_template);
  const bool has_question = question.text.find_first_not_of(" \t\r\n\f\v") != std::string::npos;
  if (has_question && prompt.question.empty())
    throw Error(
        ErrorCode::kUnsupported,
        concat("the model's chat template changes the message of sample ", sample.index,
               " of task ", sample.task, ", so that its question cannot be read later: use --raw"));
  EvalPrompt out;
  out.used_template = prompt.used_template;
  out.document = std::move(prompt.context);
  out.question = std::move(prompt.question);
  move_end(out.question.empty() ? out.document : out.question, prompt.n_ending, out.ending);
  std::string prefix = question.answer_prefix;
  if (prompt.used_template) prefix.erase(0, prefix.find_first_not_of(' '));
  const std::vector<Token> tokens = engine.tokenizer().tokenize(prefix, false, false);
  out.ending.insert(out.ending.end(), tokens.begin(), tokens.end());
  if (out.ending.empty())
    move_end(out.question.empty() ? out.document : out.question, 1, out.ending);
  if (out.document.empty())
    throw Error(ErrorCode::kInvalidArgument,
                concat("sample ", sample.index, " of task ", sample.task,
                       " has no text to condense before the last token"));
  return out;
}

}  // namespace precis
