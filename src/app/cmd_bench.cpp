#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <memory>

#include "app/bench_table.h"
#include "app/build_commit.h"
#include "app/commands.h"
#include "app/method_list.h"
#include "app/number_list.h"
#include "app/progress_bar.h"
#include "app/text_file.h"
#include "app/weights_option.h"
#include "base/error.h"

namespace precis::app {
namespace {

using Texts = std::vector<std::string>;

// Lists as they were written; empty: the default.
struct BenchCommand {
  Texts models;
  Texts prompts;
  Texts answers;
  Texts depths;
  Texts methods;
  Texts keeps;
  Texts types_k = {"f16"};
  Texts types_v = {"f16"};
  Texts threads = {"0"};
  Texts batches = {"1"};
  std::string file;
  std::string format = "md";
  std::string weights = "auto";
  std::size_t repetitions = 5;
  std::size_t warmup = 1;
  std::uint64_t seed = 1;
  bool synthetic = false;
  bool growth = false;
};

constexpr std::size_t kMostTokens = std::size_t{1} << 30;
constexpr std::size_t kProbePasses = 7;

// The list of methods for each number of sessions: rows of one test, measured in turns.
std::vector<BenchMethod> bench_methods(const BenchCommand& command) {
  const std::vector<EvalMethod> methods =
      parse_methods(split_all(command.methods, "full,selkv"), split_all(command.keeps, "25%"),
                    split_all(command.types_k), split_all(command.types_v));
  std::vector<BenchMethod> out;
  for (const std::size_t n_sessions : parse_numbers("--batch", command.batches, 1, 64))
    for (const EvalMethod& method : methods) out.push_back({method, n_sessions});
  return out;
}

Texts or_default(const Texts& texts, const char* standard) {
  return texts.empty() ? Texts{standard} : texts;
}

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line))
    if (line.starts_with("model name") && line.find(": ") != std::string::npos)
      return line.substr(line.find(": ") + 2);
  return "unknown processor";
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  return text;
}

BenchSetting describe(const Engine& engine) {
  const WeightTotals weights = engine.model().weight_totals();
  BenchSetting s;
  s.build_commit = PRECIS_COMMIT;
  s.version = PRECIS_VERSION;
  s.cpu_info = cpu_name();
  s.backends = "CPU";
  s.model_filename = engine.model().path();
  s.model_type =
      concat(engine.config().arch, " ", print_count(static_cast<double>(weights.n_parameters)), " ",
             engine.config().file_type);
  s.model_size = weights.bytes;
  s.model_n_params = weights.n_parameters;
  s.n_threads = engine.backend().n_workers();
  s.weights = engine.model().weights_report();
  s.test_time = utc_now();
  return s;
}

// What was asked for, checked as far as it can be without a model.
struct BenchPlan {
  std::vector<std::size_t> threads;
  Texts models;
  std::string text;
  TableFormat format = TableFormat::kMarkdown;
  WeightsMode weights = WeightsMode::kAuto;
  BenchOptions options;
};

BenchPlan make_plan(const BenchCommand& command) {
  BenchPlan plan;
  plan.format = parse_table_format(command.format);
  plan.weights = parse_weights_mode(command.weights);
  plan.models = split_all(command.models);
  plan.threads = parse_numbers("--threads", command.threads, 0, 512);
  if (plan.models.empty()) throw Error(ErrorCode::kInvalidArgument, "--model names no file");
  BenchOptions& o = plan.options;
  o.prompts = parse_numbers("--n-prompt", or_default(command.prompts, "512"), 0, kMostTokens);
  o.answers = parse_numbers("--n-gen", or_default(command.answers, "128"), 0, kMostTokens);
  o.depths = parse_numbers("--n-depth", or_default(command.depths, "0"), 0, kMostTokens);
  o.methods = bench_methods(command);
  o.synthetic = command.synthetic;
  o.seed = command.seed;
  o.turns.repetitions = command.repetitions;
  o.turns.warmup = command.warmup;
  if (!command.file.empty()) plan.text = read_text_file(command.file).text;
  return plan;
}

void run_table(const BenchPlan& plan) {
  std::vector<BenchRecord> records;
  ProgressBar bar("measuring");
  for (const std::string& model : plan.models) {
    for (const std::size_t n_threads : plan.threads) {
      const auto engine = Engine::load(model, {.n_threads = n_threads, .weights = plan.weights});
      const Clock clock = steady_clock();
      const ReadBandwidth bandwidth =
          measure_read_bandwidth(engine->backend(), probe_bytes(), kProbePasses, clock);
      BenchOptions options = plan.options;
      if (!plan.text.empty()) options.text = engine->tokenizer().tokenize(plan.text, true, false);
      double begin = 0;
      double share = 1;
      options.progress = [&](std::size_t done, std::size_t total, const std::string&) {
        begin = static_cast<double>(done) / static_cast<double>(total);
        share = 1.0 / static_cast<double>(total);
        bar.update(begin);
      };
      options.turns.progress = [&](std::size_t done, std::size_t total) {
        bar.update(begin + share * static_cast<double>(done) / static_cast<double>(total));
      };
      const BenchSetting setting = describe(*engine);
      for (BenchRow& row : run_bench(engine, options, bandwidth, clock))
        records.push_back({setting, std::move(row)});
    }
  }
  bar.finish();
  std::fputs(print_bench(records, plan.format).c_str(), stdout);
}

// 512, 1024, ... up to the model's context.
std::vector<std::size_t> doubling_prompts(std::size_t context) {
  std::vector<std::size_t> out;
  for (std::size_t n = 512; n <= context; n *= 2) out.push_back(n);
  if (out.size() < 2) out = {context / 2, context};
  return out;
}

void run_growth(const BenchCommand& command, const BenchPlan& plan) {
  if (plan.models.size() != 1 || plan.threads.size() != 1)
    throw Error(ErrorCode::kInvalidArgument,
                concat("--growth takes one model and one number of threads, not ",
                       plan.models.size(), " and ", plan.threads.size()));
  const auto& methods = plan.options.methods;
  const auto condensing = std::find_if(methods.begin(), methods.end(),
                                       [](const BenchMethod& m) { return !m.method.is_full(); });
  if (condensing == methods.end())
    throw Error(ErrorCode::kInvalidArgument, "--growth needs a method that condenses, not 'full'");
  GrowthOptions options;
  options.condense = {condensing->method, condensing->budget, command.seed, condensing->rows};
  options.turns = plan.options.turns;
  options.n_gen = command.answers.empty() ? 8 : plan.options.answers.front();
  options.entries = command.depths.empty()
                        ? parse_numbers("--n-depth", {"1024-1048576*4"}, 1, kMostTokens)
                        : plan.options.depths;
  options.memory_bytes = static_cast<std::size_t>(sysconf(_SC_AVPHYS_PAGES)) *
                         static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) / 2;
  const auto engine = Engine::load(plan.models.front(),
                                   {.n_threads = plan.threads.front(), .weights = plan.weights});
  options.prompts = command.prompts.empty() ? doubling_prompts(engine->config().n_ctx_train)
                                            : plan.options.prompts;
  std::erase(options.prompts, std::size_t{0});
  ProgressBar bar("measuring");
  options.progress = [&](std::size_t done, std::size_t total, const std::string&) {
    bar.update(static_cast<double>(done) / static_cast<double>(total));
  };
  const Growth growth = measure_growth(engine, options, steady_clock());
  bar.finish();
  std::fputs(print_growth(growth, describe(*engine), plan.format).c_str(), stdout);
}

void bench(const BenchCommand& command) {
  const BenchPlan plan = make_plan(command);
  if (command.growth)
    run_growth(command, plan);
  else
    run_table(plan);
}

}  // namespace

Command add_bench(CLI::App& parent) {
  auto o = std::make_shared<BenchCommand>();
  CLI::App* c = parent.add_subcommand(
      "bench", "Measure reading and decoding, with and without condensing; see docs/BENCHMARKS.md");
  // A list: given once with commas, or several times.
  const auto list = [c](const char* names, Texts& texts, const char* help) {
    return c->add_option(names, texts, help)->allow_extra_args(false);
  };
  list("-m,--model", o->models, "GGUF file")->required()->envname("PRECIS_ARG_MODEL");
  list("-p,--n-prompt", o->prompts, "Tokens of the prompt tests (default: 512; 0: none)");
  list("-n,--n-gen", o->answers, "Tokens of the decode tests (default: 128; 0: none)");
  list("-d,--n-depth", o->depths, "Tokens in the cache before a test (default: 0)");
  list("--method", o->methods, "SPECs to compare with the first (default: full,selkv)");
  list("--keep", o->keeps, "Budgets of each method (default: 25%)");
  list("--cache-type-k", o->types_k, "Types of key rows: f16, q8_0, q4 (default: f16; also: -ctk)");
  list("--cache-type-v", o->types_v,
       "Types of value rows: f16, q8_0, q4 (default: f16; also: -ctv)");
  list("-t,--threads", o->threads, "Threads (0: one per core)")->envname("PRECIS_ARG_THREADS");
  list("-b,--batch", o->batches, "Sessions that decode together (default: 1)");
  add_weights_mode(*c, o->weights);
  c->add_option("-f,--file", o->file,
                "Read this text instead of random tokens ('-': standard input)");
  c->add_option("-r,--repetitions", o->repetitions, "Rounds that are reported")
      ->capture_default_str()
      ->check(CLI::Range(1u, 10000u));
  c->add_option("--warmup", o->warmup, "Rounds before them")
      ->capture_default_str()
      ->check(CLI::Range(0u, 10000u));
  c->add_option("-o,--output", o->format, "md, csv, json or jsonl")->capture_default_str();
  c->add_option("-s,--seed", o->seed, "Seed of random tokens, synthetic rows and methods that draw")
      ->capture_default_str()
      ->envname("PRECIS_ARG_SEED");
  c->add_flag("--synthetic", o->synthetic,
              "Fill depths with random rows instead of reading a prompt; also beyond the context");
  c->add_flag(
      "--growth", o->growth,
      "How costs grow: a step with the entries (-d), reading and condensing with the prompt (-p)");
  return [o] { bench(*o); };
}

}  // namespace precis::app
