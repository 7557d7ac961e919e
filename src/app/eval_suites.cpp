#include "app/eval_suites.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "app/number_list.h"
#include "app/text_file.h"
#include "base/error.h"
#include "eval/task_suites.h"
#include "tasks/question_list.h"

namespace precis::app {
namespace {

using Texts = std::vector<std::string>;

constexpr std::size_t kMost = std::size_t{1} << 30;

std::string file_name(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

// Files one after another, with a blank line between.
std::string read_joined(const Texts& files) {
  std::string out;
  for (const std::string& file : files) out += (out.empty() ? "" : "\n\n") + read_text(file);
  return out;
}

double parse_percent(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(value >= 0 && value <= 100))
    throw Error(ErrorCode::kInvalidArgument,
                concat("--depth '", text, "' is not a percentage from 0 to 100"));
  return value;
}

class FidelityCommand final : public SuiteCommand {
 public:
  const char* name() const override { return "fidelity"; }
  const char* help() const override {
    return "Condense a text's beginning and read on, beside the full cache";
  }
  bool asks() const override { return false; }
  void add_options(EvalSettings& s) override {
    s.texts("-f,--file", files_, "Text, or a folder of texts; may be given several times")
        ->required();
    s.number("--context", wanted_.n_prefix, 1, kMost, "Tokens of a passage that are condensed");
    s.number("--continuation", wanted_.n_continuation, 2, kMost,
             "Tokens of it that are read after that");
    s.number("-n,--passages", wanted_.n_passages, 1, kMost, "Passages of each text, at most");
  }
  Texts read_files() override {
    files_ = list_files(files_);
    for (const std::string& file : files_)
      wanted_.texts.emplace_back(file_name(file), read_text(file));
    return files_;
  }
  Suite make(const std::shared_ptr<const Engine>& engine, std::uint64_t) const override {
    return fidelity_suite(engine, wanted_);
  }

 private:
  Texts files_;
  FidelityOptions wanted_;
};

class RulerCommand final : public SuiteCommand {
 public:
  const char* name() const override { return "ruler"; }
  const char* help() const override { return "The 13 tasks of RULER, generated at any length"; }
  void add_options(EvalSettings& s) override {
    s.list("--task", wanted_.tasks, "", "Tasks (default: all that can be made)");
    s.list("--length", lengths_, "4096", "Tokens of a sample with its answer, before the template");
    s.number("-n,--samples", wanted_.n_samples, 1, 1000000, "Samples of each task and length");
    s.texts("--essay", essays_,
            "Plain text or folder for haystacks; without it their tasks are "
            "left out");
    s.text("--squad", squad_, "Questions in SQuAD's format, for qa_1");
    s.text("--hotpot", hotpot_, "Questions in HotpotQA's format, for qa_2");
  }
  Texts read_files() override {
    wanted_.lengths = parse_numbers("--length", lengths_, 1, std::size_t{1} << 20);
    for (const std::string& task : wanted_.tasks) (void)ruler_missing(task, {});  // known?
    essays_ = list_files(essays_);
    wanted_.materials.essay = read_joined(essays_);
    Texts out = essays_;
    if (!squad_.empty()) {
      wanted_.materials.squad = parse_squad(read_text(squad_));
      out.push_back(squad_);
    }
    if (!hotpot_.empty()) {
      wanted_.materials.hotpot = parse_hotpot(read_text(hotpot_));
      out.push_back(hotpot_);
    }
    return out;
  }
  Suite make(const std::shared_ptr<const Engine>& engine, std::uint64_t seed) const override {
    RulerOptions options = wanted_;
    options.seed = seed;
    return ruler_suite(engine, options);
  }

 private:
  Texts lengths_;
  Texts essays_;
  std::string squad_;
  std::string hotpot_;
  RulerOptions wanted_;
};

class NeedleCommand final : public SuiteCommand {
 public:
  const char* name() const override { return "needle"; }
  const char* help() const override { return "A number at every depth of texts of every length"; }
  void add_options(EvalSettings& s) override {
    s.list("--length", lengths_, "1024,2048,4096", "Tokens of a sample with its answer");
    s.list("--depth", depths_, "0,25,50,75,100", "Where the number stands, in percent");
    s.number("-n,--samples", wanted_.n_samples, 1, 1000000, "Samples of each length and depth");
    s.texts("--essay", essays_, "Plain text or folder for the haystack (default: bland sentences)");
  }
  Texts read_files() override {
    wanted_.lengths = parse_numbers("--length", lengths_, 1, std::size_t{1} << 20);
    wanted_.depths.clear();
    for (const std::string& depth : depths_) wanted_.depths.push_back(parse_percent(depth));
    essays_ = list_files(essays_);
    wanted_.essay = read_joined(essays_);
    return essays_;
  }
  Suite make(const std::shared_ptr<const Engine>& engine, std::uint64_t seed) const override {
    NeedleOptions options = wanted_;
    options.seed = seed;
    return needle_suite(engine, options);
  }

 private:
  Texts lengths_;
  Texts depths_;
  Texts essays_;
  NeedleOptions wanted_;
};

class LongBenchCommand final : public SuiteCommand {
 public:
  const char* name() const override { return "longbench"; }
  const char* help() const override { return "LongBench's 16 English tasks, from its own files"; }
  void add_options(EvalSettings& s) override {
    s.texts("-f,--file", paths_, "A <task>.jsonl of LongBench or a folder of them")->required();
    s.list("--task", tasks_, "", "Tasks of a folder (default: all that are there)");
    s.number("-n,--samples", n_samples_, 1, kMost, "Samples of each task, at most");
    s.number("--limit", wanted_.limit_tokens, 0, kMost,
             "Tokens of a prompt; the middle of longer ones is cut out (0: what fits the model)");
    s.text("--prompts", prompts_,
           "LongBench's dataset2prompt.json, for its own wording (default: ours)");
  }
  Texts read_files() override {
    wanted_.n_samples = n_samples_;
    for (const std::string& task : tasks_) (void)longbench_rule(task);  // known?
    Texts out;
    for (const std::string& path : paths_)
      for (LongBenchFile& file : list_longbench_files(path)) {
        if (!tasks_.empty() && std::find(tasks_.begin(), tasks_.end(), file.task) == tasks_.end())
          continue;
        out.push_back(file.path);
        wanted_.files.push_back(std::move(file));
      }
    if (out.empty())
      throw Error(ErrorCode::kInvalidArgument, "none of the tasks' files is there (-f, --task)");
    wanted_.prompts = default_longbench_prompts();
    if (!prompts_.empty()) {
      wanted_.prompts = parse_longbench_prompts(read_text(prompts_));
      out.push_back(prompts_);
    }
    return out;
  }
  Suite make(const std::shared_ptr<const Engine>& engine, std::uint64_t) const override {
    return longbench_suite(engine, wanted_);
  }

 private:
  Texts paths_;
  Texts tasks_;
  std::string prompts_;
  std::size_t n_samples_ = 200;
  LongBenchOptions wanted_;
};

class AskCommand final : public SuiteCommand {
 public:
  const char* name() const override { return "ask"; }
  const char* help() const override { return "Your own questions about your own document"; }
  void add_options(EvalSettings& s) override {
    s.text("-f,--file", file_, "The document")->required();
    s.text("--questions", questions_,
           "Questions, one a line: plain text, or JSON with \"question\" and \"answers\"")
        ->required();
    s.number("-n,--predict", wanted_.max_new_tokens, 1, kMost, "Tokens of an answer, at most");
  }
  Texts read_files() override {
    (void)list_files({file_, questions_});  // not standard input
    wanted_.name = file_name(file_);
    wanted_.document = read_text(file_);
    wanted_.questions = parse_questions(read_text(questions_));
    return {file_, questions_};
  }
  Suite make(const std::shared_ptr<const Engine>& engine, std::uint64_t) const override {
    return ask_suite(engine, wanted_);
  }

 private:
  std::string file_;
  std::string questions_;
  AskOptions wanted_;
};

}  // namespace

std::vector<std::unique_ptr<SuiteCommand>> make_suite_commands() {
  std::vector<std::unique_ptr<SuiteCommand>> out;
  out.push_back(std::make_unique<FidelityCommand>());
  out.push_back(std::make_unique<RulerCommand>());
  out.push_back(std::make_unique<LongBenchCommand>());
  out.push_back(std::make_unique<NeedleCommand>());
  out.push_back(std::make_unique<AskCommand>());
  return out;
}

}  // namespace precis::app
