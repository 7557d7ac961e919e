#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "app/bench_table.h"
#include "app/build_commit.h"
#include "app/commands.h"
#include "app/number_list.h"
#include "app/progress_bar.h"
#include "app/text_file.h"
#include "base/error.h"
#include "eval/suite.h"
#include "methods/registry.h"
#include "report/content_hash.h"

namespace precis::app {
namespace {

using Texts = std::vector<std::string>;

// Options as they were given; lists as they were written.
struct EvalCommand {
  std::string model;
  Texts files;
  Texts methods;
  Texts keeps;
  Texts types_k = {"f16"};
  Texts types_v = {"f16"};
  std::string output;
  std::string shard = "1/1";
  // Fixed ways by default: measured ones may choose other bits on another day.
  std::string matmul = "sgemm";
  std::string weights = "file";
  std::size_t n_prefix = 1024;
  std::size_t n_continuation = 256;
  std::size_t n_passages = 8;
  std::size_t n_threads = 0;
  std::uint64_t seed = 1;
};

CancelFlag interrupted{false};

void on_interrupt(int) {
  interrupted = true;
  std::signal(SIGINT, SIG_DFL);  // a second Ctrl-C ends the process at once
}

Texts split_all(const Texts& texts, const char* standard) {
  Texts out;
  for (const std::string& text : texts)
    for (std::string& part : split_list(text)) out.push_back(std::move(part));
  if (out.empty() && standard != nullptr)
    for (std::string& part : split_list(standard)) out.push_back(std::move(part));
  return out;
}

std::vector<RowType> row_types(const Texts& names) {
  std::vector<RowType> out;
  for (const std::string& name : split_all(names, "f16")) {
    const auto found = find_row_type(name);
    if (!found)
      throw Error(ErrorCode::kInvalidArgument,
                  concat("unknown cache type '", name, "'; possible: ", row_type_names()));
    out.push_back(*found);
  }
  return out;
}

// Every method with every budget, `full` once, in all row types.
std::vector<EvalMethod> make_methods(const EvalCommand& command) {
  const Registry registry = builtin_methods();
  const std::vector<RowType> keys = row_types(command.types_k);
  const std::vector<RowType> values = row_types(command.types_v);
  std::vector<EvalMethod> out;
  for (const std::string& spec : split_all(command.methods, "full,snapkv,selkv")) {
    const Method method = registry.parse(spec);
    for (const std::string& keep : split_all(command.keeps, "10%,25%,50%")) {
      for (const RowType k : keys)
        for (const RowType v : values) out.push_back({method, Budget::parse(keep), spec, {k, v}});
      if (method.is_full()) break;
    }
  }
  return out;
}

struct Shard {
  std::size_t index = 1;
  std::size_t count = 1;
};

Shard parse_shard(const std::string& text) {
  unsigned index = 0;
  unsigned count = 0;
  int end = 0;
  const bool read = std::sscanf(text.c_str(), "%u/%u%n", &index, &count, &end) == 2;
  if (!read || static_cast<std::size_t>(end) != text.size() || index == 0 || index > count ||
      count > 100000)
    throw Error(ErrorCode::kInvalidArgument,
                concat("--shard '", text, "' is not I/N with 1 <= I <= N <= 100000, as in 2/8"));
  return {index, count};
}

// Texts by their file names; a folder stands for its files, in order of name.
std::vector<std::string> list_files(const Texts& paths) {
  std::vector<std::string> out;
  for (const std::string& path : paths) {
    std::error_code ignored;
    if (!std::filesystem::is_directory(path, ignored)) {
      out.push_back(path);
      continue;
    }
    Texts found;
    for (const auto& entry : std::filesystem::directory_iterator(path, ignored))
      if (entry.is_regular_file(ignored)) found.push_back(entry.path().string());
    if (found.empty()) throw Error(ErrorCode::kIo, concat("the folder '", path, "' has no files"));
    std::sort(found.begin(), found.end());
    out.insert(out.end(), found.begin(), found.end());
  }
  return out;
}

RunRow describe(const EvalCommand& command, const Engine& engine,
                const std::vector<std::string>& files) {
  RunRow run;
  run.suite = "fidelity";
  run.version = PRECIS_VERSION;
  run.commit = PRECIS_COMMIT;
  run.model = std::filesystem::path(command.model).filename().string();
  run.model_sha256 = sha256_of_file(command.model);
  run.model_type =
      concat(engine.config().arch, " ",
             print_count(static_cast<double>(engine.model().weight_totals().n_parameters)), " ",
             engine.config().file_type);
  run.seed = command.seed;
  run.threads = engine.backend().n_workers();
  const auto number = [](std::size_t n) { return Texts{std::to_string(n)}; };
  run.settings = {{"file", files},
                  {"method", split_all(command.methods, "full,snapkv,selkv")},
                  {"keep", split_all(command.keeps, "10%,25%,50%")},
                  {"cache-type-k", split_all(command.types_k, "f16")},
                  {"cache-type-v", split_all(command.types_v, "f16")},
                  {"context", number(command.n_prefix)},
                  {"continuation", number(command.n_continuation)},
                  {"passages", number(command.n_passages)},
                  {"matmul", {command.matmul}},
                  {"weights", {command.weights}}};
  for (const std::string& file : files)
    run.input_sha256.emplace_back(std::filesystem::path(file).filename().string(),
                                  sha256_of_file(file));
  return run;
}

void evaluate_fidelity(const EvalCommand& command) {
  // What can be refused without the model is refused first.
  EvalOptions options{make_methods(command), command.seed, &interrupted};
  const Shard shard = parse_shard(command.shard);
  const std::vector<std::string> files = list_files(command.files);
  FidelityOptions wanted{{}, command.n_prefix, command.n_continuation, command.n_passages};
  for (const std::string& file : files)
    wanted.texts.emplace_back(std::filesystem::path(file).filename().string(),
                              read_text_file(file).text);
  std::signal(SIGINT, on_interrupt);
  const auto engine = Engine::load(
      command.model,
      {command.n_threads, parse_matmul_mode(command.matmul), parse_weights_mode(command.weights)});
  const Suite whole = fidelity_suite(engine, wanted);
  const Suite suite = shard_of(whole, shard.index, shard.count);
  RunRow run = describe(command, *engine, files);
  run.shard = shard.index;
  run.n_shards = shard.count;
  run.left_out = suite.left_out;
  RunLog log(command.output, run, suite.units,
             [&](std::size_t unit) { return suite.count(unit, options); });
  for (const std::string& text : suite.left_out)
    std::fprintf(stderr, "precis: left out: %s\n", text.c_str());
  if (log.n_done() > 0)
    std::fprintf(stderr, "precis: going on after %zu of %zu passages in '%s'\n", log.n_done(),
                 suite.units.size(), command.output.c_str());
  ProgressBar bar("evaluating");
  run_suite(suite, options, log, [&](std::size_t done, std::size_t total) {
    bar.update(total == 0 ? 1 : static_cast<double>(done) / static_cast<double>(total));
  });
  bar.finish();
  std::printf("%zu passages, %zu rows each, in %s\n", suite.units.size(), options.methods.size(),
              command.output.c_str());
}

}  // namespace

Command add_eval(CLI::App& parent) {
  auto o = std::make_shared<EvalCommand>();
  CLI::App* c = parent.add_subcommand(
      "eval", "Measure how faithful condensed caches are; see docs/EVALUATION.md");
  c->require_subcommand(1);
  CLI::App* f = c->add_subcommand("fidelity",
                                  "Condense a text's beginning and read on, beside the full cache");
  const auto list = [f](const char* names, Texts& texts, const char* help) {
    return f->add_option(names, texts, help)->allow_extra_args(false);
  };
  f->add_option("-m,--model", o->model, "GGUF file")->required();
  list("-f,--file", o->files, "Text, or a folder of texts; may be given several times")->required();
  f->add_option("-o,--output", o->output, "Result file (JSON Lines); an unfinished one is resumed")
      ->required();
  list("--method", o->methods, "SPECs to compare (default: full,snapkv,selkv)");
  list("--keep", o->keeps, "Budgets of each method (default: 10%,25%,50%)");
  list("--cache-type-k", o->types_k, "Types of key rows: f16, q8_0, q4 (default: f16; also: -ctk)");
  list("--cache-type-v", o->types_v,
       "Types of value rows: f16, q8_0, q4 (default: f16; also: -ctv)");
  f->add_option("--context", o->n_prefix, "Tokens of a passage that are condensed")
      ->capture_default_str()
      ->check(CLI::Range(1u, 1u << 30));
  f->add_option("--continuation", o->n_continuation, "Tokens of it that are read after that")
      ->capture_default_str()
      ->check(CLI::Range(2u, 1u << 30));
  f->add_option("-n,--passages", o->n_passages, "Passages of each text, at most")
      ->capture_default_str()
      ->check(CLI::Range(1u, 1u << 30));
  f->add_option("--shard", o->shard, "I/N: every N-th passage, from the I-th on")
      ->capture_default_str();
  f->add_option("-t,--threads", o->n_threads, "Threads (0: one per core)")
      ->check(CLI::Range(0u, 512u));
  f->add_option("-s,--seed", o->seed, "Seed of methods that draw")->capture_default_str();
  f->add_option("--matmul", o->matmul,
                "Products of prompt and weights: sgemm (f32), ggml, or auto (measured: other bits "
                "on other days)")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "ggml", "sgemm"}));
  f->add_option("--weights", o->weights, "Form of weights in memory: file, q8_0 or auto")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "file", "q8_0"}));
  return [o] { evaluate_fidelity(*o); };
}

}  // namespace precis::app
