#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "app/bench_table.h"
#include "app/build_commit.h"
#include "app/commands.h"
#include "app/eval_suites.h"
#include "app/interrupt.h"
#include "app/method_list.h"
#include "app/progress_bar.h"
#include "base/error.h"
#include "report/content_hash.h"
#include "report/result_file.h"
#include "report/run_difference.h"

namespace precis::app {
namespace {

using Texts = std::vector<std::string>;

struct EvalCommand {
  std::unique_ptr<SuiteCommand> suite;
  CLI::App* parser = nullptr;
  std::unique_ptr<EvalSettings> settings;
  std::string model;
  std::string output;
  std::string shard = "1/1";
  std::size_t n_threads = 0;
  std::uint64_t seed = 1;
  // The following are among the settings.
  Texts methods;
  Texts keeps;
  Texts types_k;
  Texts types_v;
  // Fixed ways by default: measured ones may choose other bits on another day.
  std::string matmul = "sgemm";
  std::string weights = "file";
  Texts queries;
  bool raw = false;
  bool no_maps = false;
};

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

std::vector<QueryMode> parse_queries(const Texts& names) {
  std::vector<QueryMode> out;
  for (const std::string& name : names) {
    const auto mode = find_query_mode(name);
    if (!mode)
      throw Error(ErrorCode::kInvalidArgument,
                  concat("unknown --query '", name, "'; possible: agnostic, aware"));
    out.push_back(*mode);
  }
  if (out.empty()) throw Error(ErrorCode::kInvalidArgument, "--query has no value");
  return out;
}

EvalOptions options_of(const EvalCommand& command) {
  EvalOptions out;
  out.methods = parse_methods(command.methods, command.keeps, command.types_k, command.types_v);
  out.seed = command.seed;
  out.cancel = &interrupt_flag();
  if (!command.suite->asks()) return out;
  out.queries = parse_queries(command.queries);
  out.use_template = !command.raw;
  out.kept_maps = !command.no_maps;
  return out;
}

RunRow describe(const EvalCommand& command, const Engine& engine, const Texts& files) {
  RunRow run;
  run.suite = command.suite->name();
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
  run.settings = command.settings->values();
  for (const std::string& file : files)
    run.input_sha256.emplace_back(std::filesystem::path(file).filename().string(),
                                  sha256_of_file(file));
  return run;
}

// That a run repeats another: all but where and by which build.
void check_repeats(const RunRow& run, RunRow earlier) {
  if (earlier.version != run.version || earlier.commit != run.commit)
    std::fprintf(stderr, "precis: the results are of precis %s (%s), this is %s (%s)\n",
                 earlier.version.c_str(), earlier.commit.c_str(), run.version.c_str(),
                 run.commit.c_str());
  earlier.version = run.version;
  earlier.commit = run.commit;
  earlier.model = run.model;
  earlier.threads = run.threads;
  if (const auto difference = run_difference(earlier, run))
    throw Error(ErrorCode::kInvalidArgument,
                concat("this would not repeat the run of the results, ", *difference));
}

void evaluate(EvalCommand& command, const RunRow* repeated) {
  command.settings->finish();
  // What can be refused without the model is refused first. Results are of what a file says now.
  command.methods = without_files(std::move(command.methods));
  const EvalOptions options = options_of(command);
  const Shard shard = parse_shard(command.shard);
  const Texts files = command.suite->read_files();
  catch_interrupt();
  const auto engine = Engine::load(
      command.model,
      {command.n_threads, parse_matmul_mode(command.matmul), parse_weights_mode(command.weights)});
  const Suite whole = command.suite->make(engine, command.seed);
  const Suite suite = shard_of(whole, shard.index, shard.count);
  RunRow run = describe(command, *engine, files);
  run.shard = shard.index;
  run.n_shards = shard.count;
  run.left_out = suite.left_out;
  if (repeated != nullptr) check_repeats(run, *repeated);
  RunLog log(command.output, run, suite.units,
             [&](std::size_t unit) { return suite.count(unit, options); });
  for (const std::string& text : suite.left_out)
    std::fprintf(stderr, "precis: left out: %s\n", text.c_str());
  const char* unit = command.suite->asks() ? "samples" : "passages";
  if (log.n_done() > 0)
    std::fprintf(stderr, "precis: going on after %zu of %zu %s in '%s'\n", log.n_done(),
                 suite.units.size(), unit, command.output.c_str());
  ProgressBar bar("evaluating");
  run_suite(suite, options, log, [&](std::size_t done, std::size_t total) {
    bar.update(total == 0 ? 1 : static_cast<double>(done) / static_cast<double>(total));
  });
  bar.finish();
  std::printf("%zu %s in %s\n", suite.units.size(), unit, command.output.c_str());
}

void add_methods_options(EvalSettings& s, EvalCommand& c) {
  s.list("--method", c.methods, "full,snapkv,selkv", "SPECs to compare");
  s.list("--keep", c.keeps, "10%,25%,50%", "Budgets of each method");
  s.list("--cache-type-k", c.types_k, "f16", "Types of key rows: f16, q8_0, q4 (also: -ctk)");
  s.list("--cache-type-v", c.types_v, "f16", "Types of value rows: f16, q8_0, q4 (also: -ctv)");
  if (c.suite->asks()) {
    s.list("--query", c.queries, "agnostic",
           "Whether methods know the question when they condense: agnostic, aware");
    s.flag("--raw", c.raw, "Without the model's chat template");
    s.flag("--no-maps", c.no_maps, "Leave out what each layer and head kept of the first samples");
  }
  s.text("--matmul", c.matmul,
         "Products of prompt and weights: sgemm (f32), ggml, or auto (measured: other bits on "
         "other days)")
      ->check(CLI::IsMember({"auto", "ggml", "sgemm"}));
  s.text("--weights", c.weights, "Form of weights in memory: file, q8_0 or auto")
      ->check(CLI::IsMember({"auto", "file", "q8_0"}));
}

std::vector<std::shared_ptr<EvalCommand>> add_suites(CLI::App& parent) {
  std::vector<std::shared_ptr<EvalCommand>> out;
  for (std::unique_ptr<SuiteCommand>& suite : make_suite_commands()) {
    auto c = std::make_shared<EvalCommand>();
    c->suite = std::move(suite);
    c->parser = parent.add_subcommand(c->suite->name(), c->suite->help());
    c->settings = std::make_unique<EvalSettings>(*c->parser);
    c->parser->add_option("-m,--model", c->model, "GGUF file")
        ->required()
        ->envname("PRECIS_ARG_MODEL");
    c->parser
        ->add_option("-o,--output", c->output,
                     "Result file (JSON Lines); an unfinished one is resumed")
        ->required();
    c->suite->add_options(*c->settings);
    add_methods_options(*c->settings, *c);
    c->parser->add_option("--shard", c->shard, "I/N: every N-th sample, from the I-th on")
        ->capture_default_str();
    c->parser->add_option("-t,--threads", c->n_threads, "Threads (0: one per core)")
        ->check(CLI::Range(0u, 512u))
        ->envname("PRECIS_ARG_THREADS");
    c->parser
        ->add_option("-s,--seed", c->seed, "Seed of generated samples and of methods that draw")
        ->capture_default_str()
        ->envname("PRECIS_ARG_SEED");
    out.push_back(std::move(c));
  }
  return out;
}

struct RepeatCommand {
  std::string results;
  std::string model;
  std::string output;
  std::size_t n_threads = 0;
};

// The run of a result file again.
void repeat(const RepeatCommand& command) {
  if (command.model.empty() || command.output.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "--from needs a model (-m) and a new result file (-o)");
  const RunRow earlier = read_results(command.results).run;
  const std::size_t n_threads = command.n_threads > 0 ? command.n_threads : earlier.threads;
  Texts words = {earlier.suite,
                 concat("--shard=", earlier.shard, "/", earlier.n_shards),
                 concat("--seed=", earlier.seed),
                 concat("--threads=", n_threads),
                 "--output=" + command.output,
                 "--model=" + command.model};
  for (std::string& word : words_of(earlier.settings)) words.push_back(std::move(word));
  std::reverse(words.begin(), words.end());  // the parser takes the last one first
  CLI::App parser("precis eval");
  const auto commands = add_suites(parser);
  try {
    parser.parse(words);
  } catch (const CLI::ParseError& e) {
    throw Error(ErrorCode::kFormat, concat("the results' settings cannot be read: ", e.what()));
  }
  for (const auto& c : commands)
    if (c->parser->parsed()) evaluate(*c, &earlier);
}

}  // namespace

Command add_eval(CLI::App& parent) {
  CLI::App* c = parent.add_subcommand(
      "eval", "Measure how faithful condensed caches are; see docs/EVALUATION.md");
  c->require_subcommand(0, 1);
  auto again = std::make_shared<RepeatCommand>();
  c->add_option("--from", again->results, "Repeat the run of this result file, with -m and -o");
  c->add_option("-m,--model", again->model, "GGUF file of that run");
  c->add_option("-o,--output", again->output, "New result file");
  c->add_option("-t,--threads", again->n_threads, "Threads (0: as many as that run had)")
      ->check(CLI::Range(0u, 512u));
  const auto commands = add_suites(*c);
  const Command evolve = add_evolve(*c);
  const CLI::App* evolve_parser = c->get_subcommands({}).back();
  return [again, commands, evolve, evolve_parser] {
    if (evolve_parser->parsed()) {
      if (!again->results.empty())
        throw Error(ErrorCode::kInvalidArgument, "--from repeats runs, not searches");
      return evolve();
    }
    for (const auto& command : commands)
      if (command->parser->parsed()) {
        if (!again->results.empty())
          throw Error(ErrorCode::kInvalidArgument, "--from takes all settings from the results");
        return evaluate(*command, nullptr);
      }
    if (again->results.empty())
      throw Error(
          ErrorCode::kInvalidArgument,
          "what is to be evaluated? fidelity, ruler, longbench, needle or ask, budgets to be "
          "searched (evolve), or a run again (--from); 'precis eval --help' tells more");
    repeat(*again);
  };
}

}  // namespace precis::app
