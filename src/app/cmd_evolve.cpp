// The search for budgets of layers: eval/budget_search.h over eval/budget_objective.h. The output
// is the state too: written whole before the first candidate and after each generation, it always
// has the best shares so far, and the values from which the same search goes on to the same end.
#include <cstdio>
#include <filesystem>
#include <memory>

#include "app/build_commit.h"
#include "app/commands.h"
#include "app/interrupt.h"
#include "app/method_list.h"
#include "app/progress_bar.h"
#include "app/row_type_options.h"
#include "app/text_file.h"
#include "base/error.h"
#include "base/utf8.h"
#include "eval/budget_objective.h"
#include "eval/budget_search.h"
#include "eval/suite.h"
#include "report/budget_file.h"
#include "report/content_hash.h"
#include "report/output_file.h"

namespace precis::app {
namespace {

struct EvolveCommand {
  std::string model;
  std::vector<std::string> files;
  std::string output;
  std::string method = "snapkv";
  std::string keep = "10%";
  RowTypes rows;
  FidelityOptions passages{{}, 1024, 64, 4};
  BudgetSearchOptions search;
  std::string matmul = "sgemm";
  std::string weights = "file";
  std::size_t n_threads = 0;
};

// The searched method with the shares of a candidate.
Method with_shares(const EvolveCommand& command, const std::vector<double>& shares) {
  return parse_method(
      concat(command.method, " layers=weights(list=", print_numbers(shares), ",fit=exact)"));
}

// A file's own name; as in the budget file, which is UTF-8.
std::string name_of(const std::string& path) {
  Utf8Assembler characters;
  std::string name = characters.push(std::filesystem::path(path).filename().string());
  return name += characters.finish();
}

// Everything that the values depend on, but for the model.
std::vector<std::pair<std::string, std::string>> settings_of(const EvolveCommand& c) {
  const auto number = [](std::size_t n) { return std::to_string(n); };
  std::vector<std::pair<std::string, std::string>> out = {
      {"objective", "mean KL to the full cache"},
      {"method", parse_method(c.method + " layers=none").spec},
      {"keep", Budget::parse(c.keep).print()},
      {"cache_type_k", row_type_name(c.rows.keys)},
      {"cache_type_v", row_type_name(c.rows.values)},
      {"context", number(c.passages.n_prefix)},
      {"continuation", number(c.passages.n_continuation)},
      {"passages", number(c.passages.n_passages)},
      {"group", number(c.search.group)},
      {"generations", number(c.search.generations)},
      {"population", number(c.search.population)},
      {"sigma", print_number(c.search.sigma)},
      {"seed", std::to_string(c.search.seed)},
      {"matmul", c.matmul},
      {"weights", c.weights},
      {"version", PRECIS_VERSION}};
  for (const std::string& file : c.files)
    out.emplace_back("sha256 of " + name_of(file), sha256_of_file(file));
  return out;
}

// The search that the output has so far, or none.
BudgetSearchLog begun_search(const std::string& output, const BudgetFile& wanted) {
  if (!std::filesystem::exists(output)) return {};
  const BudgetFile found = read_budget_file(output);
  const auto refuse = [&output](const std::string& why) {
    throw Error(ErrorCode::kInvalidArgument,
                concat("'", output, "' ", why, "; choose another output, or delete it"));
  };
  if (found.search.empty()) refuse("has budgets that were not searched");
  const auto compare = [&](const std::string& what, const std::string& there,
                           const std::string& here) {
    if (there != here)
      refuse(
          concat("is of another search: ", what, " is '", there, "' there and '", here, "' here"));
  };
  compare("the model's sha256", found.model_sha256, wanted.model_sha256);
  const auto& there = found.search.settings;
  const auto& here = wanted.search.settings;
  for (std::size_t i = 0; i < std::max(there.size(), here.size()); ++i) {
    if (i >= there.size()) refuse(concat("is of another search: it lacks ", here[i].first));
    if (i >= here.size()) refuse(concat("is of another search: ", there[i].first, " is not here"));
    compare("the setting", there[i].first, here[i].first);
    compare(there[i].first, there[i].second, here[i].second);
  }
  return found.search;
}

void check_options(const EvolveCommand& command) {
  if (parse_method(command.method).is_full())
    throw Error(ErrorCode::kInvalidArgument,
                "'full' keeps everything: there are no budgets of layers to search");
  try {
    (void)with_shares(command, {1, 1});
  } catch (const Error& error) {
    throw Error(error.code(),
                concat("--method '", command.method,
                       "' cannot be given budgets of layers, which must come from the "
                       "search (leave out its layers stage): ",
                       error.what()));
  }
  // CLI11's range lets NaN pass.
  if (!(command.search.sigma > 0))
    throw Error(ErrorCode::kInvalidArgument,
                concat("--sigma is ", command.search.sigma, "; it must be from 0.001 to 3"));
  if (command.search.population == 1)
    throw Error(ErrorCode::kInvalidArgument,
                "--population 1 has nothing to compare: give at least 2, or 0 for CMA-ES's choice");
}

void search_budgets(const EvolveCommand& command, const std::shared_ptr<const Engine>& engine,
                    const std::vector<Passage>& passages, BudgetFile file) {
  const EvalMethod method{parse_method(command.method + " layers=none"),
                          Budget::parse(command.keep), command.method, command.rows};
  const BudgetSearch search(file.shares.size(), command.search);
  // Each is a number in the file, which is written whole after every generation.
  constexpr std::size_t kMostCandidates = 100000;
  if (search.n_candidates() > kMostCandidates)
    throw Error(
        ErrorCode::kInvalidArgument,
        concat("the search has ", search.n_candidates(), " candidates, at most ", kMostCandidates,
               " can be kept: give fewer --generations or a smaller ", "--population"));
  std::vector<double> values = file.search.values;
  if (!values.empty())
    std::fprintf(stderr, "precis: going on after %zu of %zu candidates in '%s'\n", values.size(),
                 search.n_candidates(), command.output.c_str());
  // Kept from the first moment on, so that there is a file whatever happens.
  write_file(command.output, print_budget_file(file));
  ProgressBar reading("reading");
  const BudgetObjective objective(engine, passages, method, command.search.seed, &interrupt_flag(),
                                  [&reading](double fraction) { reading.update(fraction); });
  reading.finish();
  ProgressBar bar("searching");
  double first = values.empty() ? 0 : values[0];
  std::size_t n_tried = values.size();
  const auto evaluate = [&](const std::vector<double>& shares) {
    bar.update(static_cast<double>(n_tried++) / static_cast<double>(search.n_candidates()));
    const double value = objective.mean_kl(with_shares(command, shares));
    if (n_tried == 1) first = value;
    return value;
  };
  const auto keep_best = [&](const LayerShares& best) {
    file.shares = best.shares;
    file.search.values = values;
    write_file(command.output, print_budget_file(file));
    bar.finish();
    std::fprintf(stderr, "%zu of %zu candidates: KL %.6g, all layers alike %.6g\n", values.size(),
                 search.n_candidates(), best.value, first);
  };
  const LayerShares best = search.run(values, evaluate, keep_best);
  bar.finish();
  file.shares = best.shares;
  file.search.values = values;
  file.search.finished = true;
  write_file(command.output, print_budget_file(file));
  std::printf("KL %.6g nats a token, all layers alike %.6g; budgets in %s\n", best.value, first,
              command.output.c_str());
}

void evolve(EvolveCommand& command) {
  check_options(command);
  command.files = list_files(command.files);
  for (const std::string& file : command.files)
    command.passages.texts.emplace_back(std::filesystem::path(file).filename().string(),
                                        read_text(file));
  BudgetFile file;
  file.model = name_of(command.model);
  file.model_sha256 = sha256_of_file(command.model);
  file.search.settings = settings_of(command);
  const BudgetSearchLog begun = begun_search(command.output, file);
  if (begun.finished) {
    std::printf("nothing to do: the search in %s is finished\n", command.output.c_str());
    return;
  }
  file.search.values = begun.values;
  catch_interrupt();
  const auto engine = Engine::load(
      command.model,
      {command.n_threads, parse_matmul_mode(command.matmul), parse_weights_mode(command.weights)});
  const std::size_t n_layers = engine->compressible_layers().size();
  if (n_layers < 2)
    throw Error(ErrorCode::kUnsupported,
                concat("'", file.model, "' has ", n_layers,
                       " layers that can be condensed: there is nothing to share out"));
  // What was best so far belongs to the values; without them all layers are alike.
  file.shares = begun.values.empty() ? std::vector<double>(n_layers, 1)
                                     : read_budget_file(command.output).shares;
  if (file.shares.size() != n_layers)
    throw Error(ErrorCode::kFormat,
                concat("'", command.output, "' has shares of ", file.shares.size(),
                       " layers, the model has ", n_layers));
  std::vector<std::string> left_out;
  const std::vector<Passage> passages = cut_passages(*engine, command.passages, left_out);
  for (const std::string& text : left_out)
    std::fprintf(stderr, "precis: left out: %s\n", text.c_str());
  search_budgets(command, engine, passages, std::move(file));
}

void add_search_options(CLI::App& c, EvolveCommand& o) {
  c.add_option("--group", o.search.group, "Neighbouring layers that are searched together")
      ->check(CLI::Range(1u, 256u))
      ->capture_default_str();
  c.add_option("--generations", o.search.generations, "Generations of each group")
      ->check(CLI::Range(1u, 10000u))
      ->capture_default_str();
  c.add_option("--population", o.search.population,
               "Candidates of a generation (0: 4 + 3 ln of the group)")
      ->check(CLI::Range(0u, 10000u))
      ->capture_default_str();
  c.add_option("--sigma", o.search.sigma, "First step, in logarithms of a layer's share")
      ->check(CLI::Range(0.001, 3.0))
      ->capture_default_str();
  c.add_option("-s,--seed", o.search.seed, "Seed of the search and of methods that draw")
      ->capture_default_str()
      ->envname("PRECIS_ARG_SEED");
}

}  // namespace

Command add_evolve(CLI::App& parent) {
  auto o = std::make_shared<EvolveCommand>();
  CLI::App* c = parent.add_subcommand(
      "evolve", "Search budgets of layers for a model (EvolKV), for layers=evolkv(path=\"FILE\")");
  c->add_option("-m,--model", o->model, "GGUF file")->required()->envname("PRECIS_ARG_MODEL");
  c->add_option("-f,--file", o->files, "Text, or a folder of texts; may be given several times")
      ->required()
      ->allow_extra_args(false);
  c->add_option("-o,--output", o->output, "Budgets (JSON); an unfinished search is resumed")
      ->required();
  c->add_option("--method", o->method, "SPEC whose budgets of layers are searched")
      ->capture_default_str();
  c->add_option("--keep", o->keep, "Its budget")->capture_default_str();
  add_row_types(*c, o->rows);
  c->add_option("--context", o->passages.n_prefix, "Tokens of a passage that are condensed")
      ->check(CLI::Range(1u, 1u << 30))
      ->capture_default_str();
  c->add_option("--continuation", o->passages.n_continuation,
                "Tokens of it that are read after that")
      ->check(CLI::Range(2u, 1u << 30))
      ->capture_default_str();
  c->add_option("-n,--passages", o->passages.n_passages, "Passages of each text, at most")
      ->check(CLI::Range(1u, 1u << 30))
      ->capture_default_str();
  add_search_options(*c, *o);
  c->add_option("--matmul", o->matmul, "Products of prompt and weights: sgemm, ggml or auto")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "ggml", "sgemm"}));
  c->add_option("--weights", o->weights, "Form of weights in memory: file, q8_0 or auto")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "file", "q8_0"}));
  c->add_option("-t,--threads", o->n_threads, "Threads (0: one per core)")
      ->check(CLI::Range(0u, 512u))
      ->envname("PRECIS_ARG_THREADS");
  return [o] { evolve(*o); };
}

}  // namespace precis::app
