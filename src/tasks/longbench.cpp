#include "tasks/longbench.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace precis {
namespace {

using Json = nlohmann::json;

// Figures of LongBench's config/dataset2maxlen.json, eval.py and pred.py (commit 2e00731).
struct Task {
  const char* name;
  Metric metric;
  std::size_t max_new_tokens;
  bool is_few_shot = false;  // no template, first line only
  bool is_code = false;      // no template
};

constexpr auto kTasks = std::to_array<Task>({
    {"narrativeqa", Metric::kF1, 128},
    {"qasper", Metric::kF1, 128},
    {"multifieldqa_en", Metric::kF1, 64},
    {"hotpotqa", Metric::kF1, 32},
    {"2wikimqa", Metric::kF1, 32},
    {"musique", Metric::kF1, 32},
    {"gov_report", Metric::kRougeL, 512},
    {"qmsum", Metric::kRougeL, 512},
    {"multi_news", Metric::kRougeL, 512},
    {"trec", Metric::kClassification, 64, true},
    {"triviaqa", Metric::kF1, 32, true},
    {"samsum", Metric::kRougeL, 128, true},
    {"passage_count", Metric::kCount, 32},
    {"passage_retrieval_en", Metric::kRetrieval, 32},
    {"lcc", Metric::kEditSimilarity, 64, false, true},
    {"repobench-p", Metric::kEditSimilarity, 64, false, true},
});

bool is_task(std::string_view name) {
  return std::any_of(kTasks.begin(), kTasks.end(),
                     [&](const Task& task) { return name == task.name; });
}

// Reads one record and knows where it comes from.
class RecordReader {
 public:
  RecordReader(const Json& from, std::string where) : from_(from), where_(std::move(where)) {
    if (!from.is_object()) refuse("not an object");
  }

  LongBenchRecord read() const {
    LongBenchRecord out;
    out.input = text("input", needed("input"));
    out.context = text("context", needed("context"));
    out.answers = texts("answers", needed("answers"));
    if (out.answers.empty()) refuse("field 'answers' is empty, at least one is needed");
    out.dataset = text("dataset", needed("dataset"));
    if (const Json* found = find("all_classes")) out.classes = texts("all_classes", *found);
    if (const Json* found = find("language")) out.language = text("language", *found);
    if (const Json* found = find("_id")) out.id = text("_id", *found);
    if (const Json* found = find("length")) {
      if (!found->is_number_unsigned()) wrong("length", "a whole number of 0 or more");
      out.n_words = found->get<std::size_t>();
    }
    return out;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorCode::kFormat, where_ + what);
  }
  [[noreturn]] void wrong(const char* name, const char* wanted) const {
    refuse(concat("field '", name, "' is not ", wanted));
  }
  // null stands for a field without a value.
  const Json* find(const char* name) const {
    const auto found = from_.find(name);
    return found == from_.end() || found->is_null() ? nullptr : &*found;
  }
  const Json& needed(const char* name) const {
    const auto found = from_.find(name);
    if (found == from_.end()) refuse(concat("field '", name, "' is missing"));
    return *found;
  }
  std::string text(const char* name, const Json& value) const {
    if (!value.is_string()) wrong(name, "text");
    return value.get<std::string>();
  }
  std::vector<std::string> texts(const char* name, const Json& value) const {
    if (!value.is_array()) wrong(name, "a list of texts");
    std::vector<std::string> out;
    for (const Json& item : value) {
      if (!item.is_string()) wrong(name, "a list of texts");
      out.push_back(item.get<std::string>());
    }
    return out;
  }

  const Json& from_;
  std::string where_;
};

enum class LineEnd { kBreak, kFile, kTooLong };

// std::getline would hold a file without line breaks in memory, however large.
LineEnd read_line(std::streambuf& in, std::string& line) {
  using Traits = std::streambuf::traits_type;
  line.clear();
  for (auto c = in.sbumpc(); !Traits::eq_int_type(c, Traits::eof()); c = in.sbumpc()) {
    if (c == '\n') return LineEnd::kBreak;
    if (line.size() == kMostLongBenchLine) return LineEnd::kTooLong;
    line += Traits::to_char_type(c);
  }
  return LineEnd::kFile;
}

// Bytes that a character with this first byte has; 1 for what begins none.
std::size_t length_from(std::uint8_t lead) {
  return lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
}

bool is_continuation(char c) { return (static_cast<std::uint8_t>(c) & 0xC0U) == 0x80; }

void drop_partial_end(std::string& text) {
  std::size_t n = 0;  // continuation bytes at the end
  while (n < text.size() && n < 3 && is_continuation(text[text.size() - 1 - n])) ++n;
  if (n == text.size()) return;
  const auto lead = static_cast<std::uint8_t>(text[text.size() - 1 - n]);
  if (length_from(lead) > n + 1) text.resize(text.size() - 1 - n);
}

void drop_partial_start(std::string& text) {
  std::size_t n = 0;
  while (n < text.size() && n < 3 && is_continuation(text[n])) ++n;
  text.erase(0, n);
}

struct Halves {
  std::string first;  // the whole text if nothing is lost
  std::string last;
  std::size_t n_lost = 0;
};

Halves halves_of(const TokenCodec& codec, std::string_view text, std::size_t limit) {
  const std::vector<std::int32_t> tokens = codec.encode(text);
  if (tokens.size() <= limit) return {std::string(text), "", 0};
  const std::span<const std::int32_t> all(tokens);
  const std::size_t half = limit / 2;
  Halves out{codec.decode(all.first(half)), codec.decode(all.last(half)), tokens.size() - 2 * half};
  drop_partial_end(out.first);
  drop_partial_start(out.last);
  return out;
}

// Cuts the middle out of a sample's only prompt.
void shorten(TaskSample& sample, const TokenCodec& codec, std::size_t limit) {
  const std::string& question = sample.questions[0].text;
  const Halves halves = halves_of(codec, sample.context + question, limit);
  if (halves.n_lost == 0) return;
  const std::size_t n_kept = halves.first.size() + halves.last.size();
  if (halves.last.ends_with(question) && n_kept > question.size()) {
    sample.context = halves.first + halves.last.substr(0, halves.last.size() - question.size());
    sample.n_truncated = halves.n_lost;
    return;
  }
  const std::size_t n_question = codec.count(question);
  const std::size_t n_left = limit > n_question ? limit - n_question : 0;
  sample.context = truncate_middle(codec, sample.context, n_left, &sample.n_truncated);
  if (sample.context.empty())
    throw Error(
        ErrorCode::kInvalidArgument,
        concat(sample.task, " sample ", sample.index, ": the question alone has ", n_question,
               " tokens, which leaves nothing of the document where the prompt is "
               "limited to ",
               limit, "; raise the limit"));
}

}  // namespace

std::vector<std::string> longbench_task_names() {
  std::vector<std::string> out;
  out.reserve(kTasks.size());
  for (const Task& task : kTasks) out.emplace_back(task.name);
  return out;
}

TaskRule longbench_rule(std::string_view name) {
  const auto found = std::find_if(kTasks.begin(), kTasks.end(),
                                  [&](const Task& task) { return name == task.name; });
  if (found == kTasks.end()) {
    std::string names;
    for (const Task& task : kTasks) names += concat(names.empty() ? "" : ", ", task.name);
    throw Error(ErrorCode::kInvalidArgument,
                concat("LongBench has no task '", name, "'; it has ", names));
  }
  TaskRule rule;
  rule.metric = found->metric;
  rule.max_new_tokens = found->max_new_tokens;
  rule.use_template = !found->is_few_shot && !found->is_code;
  rule.first_line_only = found->is_few_shot;
  rule.stop_at_newline = name == "samsum";
  return rule;
}

std::size_t read_longbench(std::istream& in, const std::string& name,
                           const std::function<bool(LongBenchRecord&&)>& take) {
  std::size_t n_records = 0;
  std::string line;
  LineEnd end = LineEnd::kBreak;
  for (std::size_t number = 1; end != LineEnd::kFile; ++number) {
    const std::string where = concat(name, ", line ", number, ": ");
    try {
      end = read_line(*in.rdbuf(), line);
    } catch (const std::ios_base::failure&) {
      throw Error(ErrorCode::kIo, where + "cannot be read");
    }
    if (end == LineEnd::kTooLong)
      throw Error(ErrorCode::kFormat, concat(where, "longer than ", kMostLongBenchLine,
                                             " bytes; a record is one line of JSON"));
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    Json record;
    try {
      record = Json::parse(line);
    } catch (const Json::parse_error& error) {
      throw Error(ErrorCode::kFormat, concat(where, "not JSON at byte ", error.byte));
    } catch (const Json::out_of_range&) {
      throw Error(ErrorCode::kFormat, concat(where, "a number is too large"));
    }
    ++n_records;
    if (!take(RecordReader(record, where).read())) break;
  }
  return n_records;
}

std::size_t read_longbench(const std::string& path,
                           const std::function<bool(LongBenchRecord&&)>& take) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw Error(ErrorCode::kIo, concat("cannot open '", path, "'"));
  return read_longbench(in, path, take);
}

std::vector<LongBenchFile> list_longbench_files(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (!fs::exists(path, ignored))
    throw Error(ErrorCode::kIo, concat("there is no file or folder '", path, "'"));
  std::vector<LongBenchFile> out;
  if (fs::is_directory(path, ignored)) {
    for (const Task& task : kTasks) {
      const fs::path file = fs::path(path) / concat(task.name, ".jsonl");
      if (fs::exists(file, ignored)) out.push_back({task.name, file.string()});
    }
    if (out.empty())
      throw Error(ErrorCode::kInvalidArgument,
                  concat("the folder '", path, "' has none of the 16 files of LongBench, such as ",
                         kTasks[0].name, ".jsonl"));
    return out;
  }
  const fs::path file(path);
  if (file.extension() != ".jsonl" || !is_task(file.stem().string()))
    throw Error(ErrorCode::kInvalidArgument,
                concat("the file '", path, "' does not have the name of a LongBench task, such as ",
                       kTasks[0].name, ".jsonl"));
  return {{file.stem().string(), path}};
}

std::string truncate_middle(const TokenCodec& codec, std::string_view text, std::size_t limit,
                            std::size_t* n_lost) {
  Halves halves = halves_of(codec, text, limit);
  if (n_lost != nullptr) *n_lost = halves.n_lost;
  return halves.first + halves.last;
}

TaskSample make_longbench_sample(std::string_view task, const LongBenchRecord& record,
                                 std::size_t index, const LongBenchPrompts& prompts,
                                 const TokenCodec& codec, std::size_t limit_tokens) {
  TaskSample sample;
  sample.rule = longbench_rule(task);
  sample.task = task;
  sample.index = index;
  const auto refuse = [&](ErrorCode code, const auto&... what) {
    throw Error(code, concat(task, " sample ", index, ": ", what...));
  };
  const auto prompt = prompts.find(task);
  if (prompt == prompts.end())
    refuse(ErrorCode::kInvalidArgument, "the file of prompts has none of this name");
  // LongBench-E names its data sets with an "_e" after the task.
  if (record.dataset != task && record.dataset != concat(task, "_e"))
    refuse(ErrorCode::kFormat, "the record says that it is of dataset '", record.dataset, "'");
  if (sample.rule.metric == Metric::kClassification && record.classes.empty())
    refuse(ErrorCode::kFormat, "field 'all_classes' lists no class, and the metric needs them");
  sample.context = prompt->second.before_context + record.context;
  if (sample.context.empty()) refuse(ErrorCode::kFormat, "the context is empty");
  sample.questions.push_back(
      {prompt->second.question(record.input), "", record.answers, record.classes});
  if (limit_tokens > 0) shorten(sample, codec, limit_tokens);
  return sample;
}

}  // namespace precis
