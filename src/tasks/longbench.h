// LongBench's 16 English tasks (Bai et al., arXiv 2308.14508), read from the data set's own files,
// which the user brings: <task>.jsonl, a record a line. Number of new tokens, metric and use of the
// chat template are LongBench's. The wording of the prompts is ours; the official one can be given
// (longbench_prompts.h).
#pragma once

#include <cstddef>
#include <functional>
#include <istream>
#include <string>
#include <string_view>
#include <vector>

#include "tasks/longbench_prompts.h"
#include "tasks/sample.h"

namespace precis {

// In LongBench's order: "narrativeqa" ... "repobench-p".
std::vector<std::string> longbench_task_names();

// Throws Error(kInvalidArgument) for a name that is not among them.
TaskRule longbench_rule(std::string_view task);

// One line of a file.
struct LongBenchRecord {
  std::string input;                 // the question; empty where a task has none
  std::string context;               // the document
  std::vector<std::string> answers;  // at least one
  std::vector<std::string> classes;  // "all_classes"; empty for null or if the field is missing
  std::string dataset;               // the task
  std::string language;              // empty if missing, like all below
  std::string id;                    // "_id"
  std::size_t n_words = 0;           // "length"
};

inline constexpr std::size_t kMostLongBenchLine = std::size_t{64} << 20;  // bytes

// Reads records one after another and hands each to `take`, until that returns false; holds one
// line at a time. Lines of white space are skipped. Returns the number of records taken. Needed are
// the fields input, context, answers and dataset; fields not listed above are ignored. Throws
// Error(kFormat) that begins with `name` and the number of the line: longer than
// kMostLongBenchLine, not JSON (at which byte), not an object, a missing field or one of the wrong
// type (its name); kIo if reading fails.
std::size_t read_longbench(std::istream& in, const std::string& name,
                           const std::function<bool(LongBenchRecord&&)>& take);
// The same from a file; also kIo if it cannot be opened.
std::size_t read_longbench(const std::string& path,
                           const std::function<bool(LongBenchRecord&&)>& take);

struct LongBenchFile {
  std::string task;
  std::string path;
};

// The tasks whose <task>.jsonl lies in the folder `path`, in LongBench's order; or, if `path` is
// such a file itself, this one. Throws Error(kIo) if there is nothing at `path`,
// Error(kInvalidArgument) for a folder without any and for a file of another name.
std::vector<LongBenchFile> list_longbench_files(const std::string& path);

// The text without its middle, so that about `limit` tokens are left: where it has n > limit
// tokens, the first limit / 2 and the last limit / 2, as text. n_lost (may be null): the n - 2 *
// (limit / 2) tokens between, or 0. Where a token ends within a character, the rest of that
// character is dropped with them, so valid UTF-8 stays valid. Tokenised again, the text may have a
// few tokens more or fewer at the cut. Nothing is left of a longer text for a limit below 2.
std::string truncate_middle(const TokenCodec& codec, std::string_view text, std::size_t limit,
                            std::size_t* n_lost);

// The sample of one record: its context is the prompt's text up to the end of the document, its one
// question all that follows, the cue for the answer included. If the whole prompt has more than
// `limit_tokens` tokens (0: no limit), its middle is cut out as by truncate_middle(). The question
// is never cut: if it does not fit into the second half, the middle of the context is cut so that
// what is left has limit_tokens less those of the question. The limit is of the text: the chat
// template and the answer come on top.
// Throws Error that names task and index: kInvalidArgument if `task` is not one of LongBench's, has
// no prompt in `prompts`, or if the question leaves nothing of the context within the limit;
// kFormat if the record is of another task, if a task that needs classes has none, or if there is
// no context.
TaskSample make_longbench_sample(std::string_view task, const LongBenchRecord& record,
                                 std::size_t index, const LongBenchPrompts& prompts,
                                 const TokenCodec& codec, std::size_t limit_tokens);

}  // namespace precis
