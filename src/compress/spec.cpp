// Reader and canonical printer of SPEC (grammar in method.h).
//
// Two steps: text -> words with their columns, then words -> stages. Every rejection is an
// Error(kInvalidArgument) that names the column, because SPECs are typed by hand and sent over
// HTTP.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "compress/method.h"
#include "compress/step.h"

namespace precis {
namespace {

constexpr std::size_t kMaxSpecLength = 4096;
constexpr const char* kKindNames[] = {"score", "select",    "layers",  "merge",
                                      "bias",  "positions", "residual"};
constexpr std::size_t kKinds = std::size(kKindNames);
constexpr const char* kNone = "none";
// Not a stage: what happens after the prompt.
constexpr const char* kDecode = "decode";
constexpr const char* kOnce = "once";
constexpr const char* kStep = "step";

struct Argument {
  std::string key;
  std::string value;
  std::size_t column = 0;
  bool in_quotes = false;
};

// "name(args)" or "kind=name(args)".
struct Word {
  std::string kind;  // empty: a preset
  std::string name;
  std::size_t column = 0;
  std::size_t name_column = 0;
  std::vector<Argument> args;
};

[[noreturn]] void reject(std::size_t column, const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, concat("method, column ", column, ": ", message));
}

// Keeps control characters and endless input out of messages.
std::string quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text.substr(0, 40)) out += (c >= ' ' && c <= '~') ? c : '?';
  return out + (text.size() > 40 ? "...'" : "'");
}

std::string joined(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ", ") + name;
  return out.empty() ? "none" : out;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row[b.size()];
}

// The three known names that are nearest to a mistyped one, nearest first.
std::string nearest(std::string_view name, const std::vector<std::string>& known) {
  const std::string_view typed = name.substr(0, 64);
  std::vector<std::pair<std::size_t, std::string>> ranked;
  for (const std::string& candidate : known)
    ranked.emplace_back(edit_distance(typed, candidate), candidate);
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> names;
  for (const auto& [distance, candidate] : ranked)
    if (names.size() < 3) names.push_back(candidate);
  return joined(names);
}

class WordReader {
 public:
  explicit WordReader(std::string_view text) : text_(text) {}

  std::vector<Word> read() {
    std::vector<Word> words;
    for (skip_space(); at_ < text_.size(); skip_space()) {
      if (!words.empty() && !is_space(text_[at_ - 1]))
        reject(column(), "expected a space before the next word, found " + found());
      words.push_back(read_word());
    }
    return words;
  }

 private:
  static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
  static bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '+' || c == '.';
  }

  std::size_t column() const { return at_ + 1; }
  std::string found() const {
    return at_ < text_.size() ? quoted(text_.substr(at_, 1)) : std::string("the end");
  }
  void skip_space() {
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
  }
  bool take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  // Spaces are free inside of parentheses.
  bool take_spaced(char c) {
    skip_space();
    const bool taken = take(c);
    if (taken) skip_space();
    return taken;
  }
  std::string read_name(const char* what) {
    const std::size_t begin = at_;
    while (at_ < text_.size() && is_name(text_[at_])) ++at_;
    if (at_ == begin) reject(column(), concat("expected ", what, ", found ", found()));
    return std::string(text_.substr(begin, at_ - begin));
  }

  Word read_word() {
    Word word;
    word.column = word.name_column = column();
    word.name = read_name("a preset or a stage");
    if (take('=')) {
      word.kind = std::move(word.name);
      word.name_column = column();
      word.name = read_name("the name of a stage");
    }
    if (take('(')) {
      do {
        skip_space();
        word.args.push_back(read_argument());
      } while (take_spaced(','));
      if (!take(')')) reject(column(), "expected ',' or ')', found " + found());
    }
    return word;
  }

  Argument read_argument() {
    Argument arg;
    arg.column = column();
    arg.key = read_name("the name of a parameter");
    if (!take_spaced('='))
      reject(column(), concat("expected '=' after ", quoted(arg.key), ", found ", found()));
    arg.in_quotes = at_ < text_.size() && text_[at_] == '"';
    arg.value = arg.in_quotes ? read_quoted() : read_name("a value");
    return arg;
  }

  // A path. There is no escape, so that a path with a quotation mark cannot be written; control
  // characters are refused because they have no place in a command line or a log.
  std::string read_quoted() {
    const std::size_t begin = ++at_;
    while (at_ < text_.size() && text_[at_] != '"') {
      const auto c = static_cast<unsigned char>(text_[at_]);
      if (c < ' ' || c == 0x7f) reject(column(), "a control character in a quoted value");
      ++at_;
    }
    std::string out(text_.substr(begin, at_ - begin));
    if (!take('"')) reject(begin, "the quoted value that begins here has no end");
    if (out.empty()) reject(begin, "a quoted value is empty");
    return out;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

// The stages chosen so far, one per kind, and the arguments each will be built with.
class Assembly {
 public:
  Assembly(const Registry& registry, const Registry::ReadNumbers& read_numbers)
      : registry_(registry), read_numbers_(read_numbers) {}

  void apply_preset(const Word& word) {
    const auto& presets = registry_.presets();
    const auto found = std::find_if(presets.begin(), presets.end(),
                                    [&](const Registry::Preset& p) { return p.name == word.name; });
    if (found == presets.end()) {
      std::vector<std::string> names;
      for (const Registry::Preset& preset : presets) names.push_back(preset.name);
      reject(word.column, concat("unknown preset ", quoted(word.name), "; nearest: ",
                                 nearest(word.name, names), " (stages are written kind=name)"));
    }
    for (const Word& stage : WordReader(found->stages).read()) apply_stage(stage);
    // Stages first: a parameter may belong to a stage that stands after it.
    for (const Argument& arg : word.args)
      if (is_kind(arg.key)) {
        check_quotes(arg);
        apply_stage({arg.key, arg.value, arg.column, arg.column, {}});
      }
    check_repeated(word);
    for (const Argument& arg : word.args)
      if (!is_kind(arg.key)) set_everywhere(word, arg);
  }

  void apply_stage(const Word& word) {
    if (!is_kind(word.kind)) {
      std::vector<std::string> kinds(std::begin(kKindNames), std::end(kKindNames));
      kinds.push_back(kDecode);
      reject(word.column,
             concat("unknown kind of stage ", quoted(word.kind), "; kinds: ", joined(kinds)));
    }
    if (word.kind == kDecode) {
      set_decode(word);
      return;
    }
    const bool optional = word.kind != "score" && word.kind != "select";
    if (optional && word.name == kNone) {
      if (!word.args.empty()) reject(word.args[0].column, "'none' has no parameters");
      slot(word.kind) = Choice();
      return;
    }
    check_repeated(word);
    if (const Registry::FileStage* stage = find_file_stage(word))
      return apply_stage(read_stage(word, *stage));
    Choice choice;
    choice.stage = &find_stage(word);
    choice.column = word.column;
    for (const Argument& arg : word.args) {
      check_parameter(*choice.stage, arg);
      choice.args.emplace_back(arg.key, arg.value);
    }
    slot(word.kind) = std::move(choice);
  }

  // Builds every chosen stage; the canonical text names all of their parameters.
  Method build() const {
    Method method;
    for (std::size_t kind = 0; kind < kKinds; ++kind) {
      const Choice& choice = choices_[kind];
      if (choice.stage == nullptr) continue;
      const std::string title = concat(kKindNames[kind], "=", choice.stage->name);
      std::vector<FieldInfo> fields;
      try {
        choice.stage->build(choice.args, method, fields);
      } catch (const Error& error) {
        reject(choice.column, concat(title, ": ", error.what()));
      }
      std::string text;
      for (const FieldInfo& field : fields)
        text += (text.empty() ? "(" : ",") + field.name + "=" + field.value;
      method.spec += (method.spec.empty() ? "" : " ") + title + (text.empty() ? "" : text + ")");
    }
    if (method.spec.empty()) method.spec = "full";
    check_complete(method);
    if (steps_) {
      check_steps(method);
      method.steps = true;
      method.spec += concat(" ", kDecode, "=", kStep);
    }
    return method;
  }

 private:
  struct Choice {
    const Registry::Stage* stage = nullptr;
    std::size_t column = 1;
    std::vector<std::pair<std::string, std::string>> args;
  };

  static bool is_kind(std::string_view name) {
    return name == kDecode ||
           std::find(std::begin(kKindNames), std::end(kKindNames), name) != std::end(kKindNames);
  }

  Choice& slot(std::string_view kind) {
    const auto at = std::find(std::begin(kKindNames), std::end(kKindNames), kind);
    return choices_[static_cast<std::size_t>(at - std::begin(kKindNames))];
  }

  const Registry::FileStage* find_file_stage(const Word& word) const {
    for (const Registry::FileStage& stage : registry_.file_stages())
      if (word.kind == stage_kind_name(stage.kind) && word.name == stage.name) return &stage;
    return nullptr;
  }

  // The stage that a file stands for.
  Word read_stage(const Word& word, const Registry::FileStage& stage) const {
    const std::string title = concat(word.kind, "=", word.name);
    if (word.args.size() != 1 || word.args[0].key != "path")
      reject(word.column, concat(title, " has one parameter: write ", title, "(path=\"FILE\")"));
    if (!read_numbers_)
      reject(word.column, concat(title, ": no files are read here: write what is in the file, ",
                                 word.kind, "=weights(list=...)"));
    std::vector<Word> words;
    try {
      const std::string text = stage.stage(read_numbers_(word.args[0].value));
      // The canonical SPEC has this text and must be one that is accepted.
      if (text.size() > kMaxSpecLength / 2)
        throw Error(
            ErrorCode::kUnsupported,
            concat("what the file says takes ", text.size(), " characters in a SPEC, at most ",
                   kMaxSpecLength / 2, " are accepted: give its numbers fewer digits"));
      words = WordReader(text).read();
    } catch (const Error& error) {
      throw Error(error.code(),
                  concat("method, column ", word.column, ": ", title, ": ", error.what()));
    }
    PRECIS_CHECK(words.size() == 1 && words[0].kind == word.kind, title);
    words[0].column = words[0].name_column = word.column;
    return words[0];
  }

  const Registry::Stage& find_stage(const Word& word) const {
    std::vector<std::string> names;
    for (const Registry::Stage& stage : registry_.stages()) {
      if (word.kind != stage_kind_name(stage.kind)) continue;
      if (stage.name == word.name) return stage;
      names.push_back(stage.name);
    }
    for (const Registry::FileStage& stage : registry_.file_stages())
      if (word.kind == stage_kind_name(stage.kind)) names.push_back(stage.name);
    if (word.kind != "score" && word.kind != "select") names.push_back(kNone);
    reject(word.name_column, concat("unknown ", word.kind, " stage ", quoted(word.name),
                                    "; nearest: ", nearest(word.name, names)));
  }

  static void check_quotes(const Argument& arg) {
    if (arg.in_quotes)
      reject(arg.column, concat("parameter ", quoted(arg.key), " is no text: write it without \""));
  }

  static void check_parameter(const Registry::Stage& stage, const Argument& arg) {
    check_quotes(arg);
    std::vector<std::string> names;
    for (const FieldInfo& field : stage.fields) {
      if (field.name == arg.key) return;
      names.push_back(field.name);
    }
    reject(arg.column, concat(stage_kind_name(stage.kind), "=", stage.name, " has no parameter ",
                              quoted(arg.key), "; its parameters: ", joined(names)));
  }

  static void check_repeated(const Word& word) {
    for (std::size_t i = 0; i < word.args.size(); ++i)
      for (std::size_t k = 0; k < i; ++k)
        if (word.args[k].key == word.args[i].key)
          reject(word.args[i].column,
                 concat("parameter ", quoted(word.args[i].key), " is given twice"));
  }

  // A parameter of a preset goes to all of its stages that have one of that name (selkv(window=64)
  // sets the window of the scores and of the merge).
  void set_everywhere(const Word& preset, const Argument& arg) {
    check_quotes(arg);
    bool found = false;
    std::vector<std::string> names;
    for (Choice& choice : choices_) {
      if (choice.stage == nullptr) continue;
      for (const FieldInfo& field : choice.stage->fields) {
        if (std::find(names.begin(), names.end(), field.name) == names.end())
          names.push_back(field.name);
        if (field.name != arg.key) continue;
        std::erase_if(choice.args, [&](const auto& a) { return a.first == arg.key; });
        choice.args.emplace_back(arg.key, arg.value);
        choice.column = arg.column;
        found = true;
      }
    }
    if (!found)
      reject(arg.column, concat("preset ", preset.name, " has no parameter ", quoted(arg.key),
                                "; its parameters: ", joined(names)));
  }

  static void check_complete(const Method& method) {
    if (method.scorer == nullptr && method.selector == nullptr && method.merger == nullptr &&
        method.compensator == nullptr && method.layers == nullptr && method.positioner == nullptr &&
        method.residual == nullptr)
      return;
    if (method.scorer == nullptr)
      reject(1, concat("'", method.spec, "' lacks score=...: a method that selects needs scores"));
    if (method.selector == nullptr)
      reject(1, concat("'", method.spec, "' lacks select=...: scores alone keep nothing"));
    if (method.compensator != nullptr && method.merger == nullptr)
      reject(1, concat("'", method.spec,
                       "' has a bias without a merge: write bias=none or add merge=..."));
    if (method.residual != nullptr && method.positioner != nullptr)
      reject(1,
             concat("'", method.spec, "' has a residual and a positions stage: the mean of keys ",
                    "has no place to be turned to; write residual=none or positions=none"));
  }

  void set_decode(const Word& word) {
    if (word.name != kOnce && word.name != kStep)
      reject(word.name_column,
             concat("unknown way to decode ", quoted(word.name), "; known: ", kOnce, ", ", kStep));
    if (!word.args.empty())
      reject(word.args[0].column, concat("'", word.name, "' has no parameters"));
    steps_ = word.name == kStep;
    decode_column_ = word.column;
  }

  void check_steps(const Method& method) const {
    const std::string reason = method.no_step_reason();
    if (reason.empty()) return;
    std::vector<std::string> presets;
    for (const Registry::Preset& preset : registry_.presets())
      if (registry_.parse(preset.name).can_step()) presets.push_back(preset.name);
    std::vector<std::string> stages;
    for (const Registry::Stage& stage : registry_.stages())
      if (stage.steps) stages.push_back(concat(stage_kind_name(stage.kind), "=", stage.name));
    reject(decode_column_, concat("decode=step: ", reason, "; presets that have it: ",
                                  joined(presets), "; stages: ", joined(stages)));
  }

  const Registry& registry_;
  const Registry::ReadNumbers& read_numbers_;
  std::array<Choice, kKinds> choices_;
  bool steps_ = false;
  std::size_t decode_column_ = 1;
};

}  // namespace

const char* stage_kind_name(StageKind kind) { return kKindNames[static_cast<std::size_t>(kind)]; }

Observation Method::observation(std::size_t n_tokens) const {
  Observation needed;
  if (scorer != nullptr) {
    needed.n_queries = scorer->queries_needed(n_tokens);
    needed.repeat_chunk = scorer->repeat_chunk();
  }
  if (merger != nullptr) {
    needed.n_queries = std::max(needed.n_queries, merger->queries_needed(n_tokens));
    needed.block = merger->attention_block();
  }
  if (residual != nullptr)
    needed.n_queries = std::max(needed.n_queries, residual->queries_needed(n_tokens));
  needed.hidden_cosine = layers != nullptr && layers->reads_hidden_cosine();
  PRECIS_CHECK(needed.n_queries <= n_tokens, needed.n_queries, " > ", n_tokens);
  return needed;
}

std::string Method::no_step_reason() const {
  if (scorer == nullptr) return "a method that keeps everything evicts nothing";
  if (scorer->step() == nullptr) return "the score stage has no rule for single steps";
  if (selector->step_scope() == StepScope::kNone)
    return "the select stage has no rule for single steps";
  if (merger != nullptr && merger->step() == nullptr)
    return "the merge stage has no rule for single steps";
  // Both would have to be renewed whenever an entry goes.
  if (compensator != nullptr) return "biases are of the prompt, write bias=none";
  if (positioner != nullptr) return "entries keep their places, write positions=none";
  if (residual != nullptr) return "residual entries are of the prompt, write residual=none";
  return "";
}

StepRules Method::step_rules() const {
  PRECIS_CHECK(can_step(), spec, ": ", no_step_reason());
  StepRules rules;
  rules.scorer_owner = scorer;
  rules.scorer = scorer->step();
  if (merger != nullptr) {
    rules.merger_owner = merger;
    rules.merger = merger->step();
  }
  rules.protection = selector->protection();
  rules.same_for_all_heads = selector->step_scope() == StepScope::kLayer;
  return rules;
}

void Registry::add_preset(Preset preset) {
  for (const Preset& known : presets_) PRECIS_CHECK(known.name != preset.name, preset.name);
  presets_.push_back(std::move(preset));
}

void Registry::add_file_stage(FileStage stage) {
  for (const FileStage& known : file_stages_) PRECIS_CHECK(known.name != stage.name, stage.name);
  file_stages_.push_back(std::move(stage));
}

Method Registry::parse(std::string_view spec, const ReadNumbers& read_numbers) const {
  if (spec.size() > kMaxSpecLength)
    throw Error(
        ErrorCode::kInvalidArgument,
        concat("method: ", spec.size(), " characters, at most ", kMaxSpecLength, " are accepted"));
  const std::vector<Word> words = WordReader(spec).read();
  if (words.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "method, column 1: empty; name a preset (\"selkv\", \"full\") or stages "
                "(\"score=selkv select=head\")");
  Assembly assembly(*this, read_numbers);
  std::vector<std::string> seen;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const Word& word = words[i];
    if (word.kind.empty()) {
      if (i > 0)
        reject(word.column, concat("only the first word may be a preset; ", quoted(word.name),
                                   " must be written kind=", word.name));
      assembly.apply_preset(word);
      continue;
    }
    if (std::find(seen.begin(), seen.end(), word.kind) != seen.end())
      reject(word.column, concat("a ", word.kind, " stage is given twice"));
    seen.push_back(word.kind);
    assembly.apply_stage(word);
  }
  return assembly.build();
}

}  // namespace precis
