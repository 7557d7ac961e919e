#include "eval/task_suites.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "eval/task_run.h"

namespace precis {
namespace {

constexpr std::string_view kDepthTask = "needle_depth_";
// Beside a prompt's text: what chat templates add, with room to spare (gemma's has 10 tokens, one
// with a system message of Qwen's 30).
constexpr std::size_t kTemplateTokens = 128;

// `make` must give the same sample each time.
Suite suite_of_samples(const std::shared_ptr<const Engine>& engine, std::string name,
                       std::vector<UnitKey> units,
                       const std::function<TaskSample(const UnitKey& unit)>& make) {
  Suite suite;
  suite.name = std::move(name);
  suite.units = std::move(units);
  suite.run = [engine, make, units = suite.units, name = suite.name](std::size_t i,
                                                                     const EvalOptions& options) {
    return run_sample(engine, name, make(units[i]), options);
  };
  suite.count = [make, units = suite.units](std::size_t i, const EvalOptions& options) {
    return count_rows(make(units[i]), options);
  };
  return suite;
}

void check_lengths(const Engine& engine, const std::vector<std::size_t>& lengths) {
  for (const std::size_t length : lengths)
    if (length > engine.config().n_ctx_train)
      throw Error(ErrorCode::kInvalidArgument,
                  concat("samples of ", length, " tokens do not fit the model's context of ",
                         engine.config().n_ctx_train, "; choose a smaller --length"));
}

}  // namespace

TokenCodec codec_of(const Engine& engine) {
  const Tokenizer* tokenizer = &engine.tokenizer();
  return {[tokenizer](std::string_view text) { return tokenizer->tokenize(text, false, false); },
          [tokenizer](std::span<const std::int32_t> tokens) {
            return tokenizer->detokenize({tokens.begin(), tokens.end()});
          }};
}

Suite ruler_suite(const std::shared_ptr<const Engine>& engine, const RulerOptions& options) {
  check_lengths(*engine, options.lengths);
  std::vector<std::string> left_out;
  std::vector<std::string> tasks;
  for (const std::string& task : options.tasks.empty() ? ruler_task_names() : options.tasks) {
    // Refuses an unknown name.
    if (const auto reason = ruler_missing(task, options.materials))
      left_out.push_back(concat(task, ": ", *reason));
    else
      tasks.push_back(task);
  }
  if (tasks.empty())
    throw Error(ErrorCode::kInvalidArgument,
                concat("none of the tasks can be made: ", left_out.front()));
  std::vector<UnitKey> units;
  for (std::size_t i = 0; i < options.n_samples; ++i)
    for (const std::size_t length : options.lengths)
      for (const std::string& task : tasks) units.push_back({"ruler", task, length, i});
  const auto materials = std::make_shared<const RulerMaterials>(options.materials);
  Suite suite = suite_of_samples(engine, "ruler", std::move(units),
                                 [materials, seed = options.seed, engine](const UnitKey& unit) {
                                   return make_ruler_sample(unit.task, unit.length, unit.index,
                                                            seed, codec_of(*engine), *materials);
                                 });
  suite.left_out = std::move(left_out);
  return suite;
}

Suite needle_suite(const std::shared_ptr<const Engine>& engine, const NeedleOptions& options) {
  check_lengths(*engine, options.lengths);
  std::vector<UnitKey> units;
  std::map<std::string, double> depths;  // by task
  for (const double depth : options.depths) {
    if (!(depth >= 0 && depth <= 100))
      throw Error(ErrorCode::kInvalidArgument,
                  concat("a depth of ", depth, " percent is not from 0 to 100"));
    depths.emplace(concat(kDepthTask, depth), depth);
  }
  for (std::size_t i = 0; i < options.n_samples; ++i)
    for (const std::size_t length : options.lengths)
      for (const double depth : options.depths)
        units.push_back({"needle", concat(kDepthTask, depth), length, i});
  return suite_of_samples(
      engine, "needle", std::move(units),
      [depths, essay = options.essay, seed = options.seed, engine](const UnitKey& unit) {
        return make_needle_sample(depths.at(unit.task), unit.length, unit.index, seed,
                                  codec_of(*engine), essay);
      });
}

Suite longbench_suite(const std::shared_ptr<const Engine>& engine,
                      const LongBenchOptions& options) {
  using Records = std::map<std::string, std::vector<LongBenchRecord>>;  // by task
  const auto records = std::make_shared<Records>();
  std::size_t longest = 0;
  for (const LongBenchFile& file : options.files) {
    std::vector<LongBenchRecord>& of_task = (*records)[file.task];
    if (!of_task.empty())
      throw Error(
          ErrorCode::kInvalidArgument,
          concat("task '", file.task, "' is given by two files, the second is '", file.path, "'"));
    read_longbench(file.path, [&](LongBenchRecord&& record) {
      of_task.push_back(std::move(record));
      return of_task.size() < options.n_samples;
    });
    longest = std::max(longest, of_task.size());
  }
  std::vector<UnitKey> units;
  for (std::size_t i = 0; i < longest; ++i)
    for (const LongBenchFile& file : options.files)
      if (i < records->at(file.task).size()) units.push_back({"longbench", file.task, 0, i});
  if (units.empty())
    throw Error(ErrorCode::kInvalidArgument, "there are no records in the files of LongBench");
  const auto make = [records, engine, prompts = options.prompts,
                     limit = options.limit_tokens](const UnitKey& unit) {
    const std::size_t beside = longbench_rule(unit.task).max_new_tokens + kTemplateTokens;
    const std::size_t context = engine->config().n_ctx_train;
    const std::size_t own = limit > 0 ? limit : context - std::min(beside, context - 2);
    return make_longbench_sample(unit.task, records->at(unit.task)[unit.index], unit.index, prompts,
                                 codec_of(*engine), own);
  };
  return suite_of_samples(engine, "longbench", std::move(units), make);
}

Suite ask_suite(const std::shared_ptr<const Engine>& engine, const AskOptions& options) {
  const auto make = [options](const UnitKey& unit) {
    TaskSample sample;
    sample.task = unit.task;
    sample.context = options.document;
    sample.questions = options.questions;
    sample.rule.metric = Metric::kContainAny;
    sample.rule.max_new_tokens = options.max_new_tokens;
    return sample;
  };
  return suite_of_samples(engine, "ask", {{"ask", options.name, 0, 0}}, make);
}

}  // namespace precis
