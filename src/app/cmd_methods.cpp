#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "app/audit_table.h"
#include "app/commands.h"
#include "app/interrupt.h"
#include "app/method_list.h"
#include "app/progress_bar.h"
#include "app/text_file.h"
#include "base/error.h"
#include "methods/registry.h"
#include "report/content_hash.h"

namespace precis::app {
namespace {

using Json = nlohmann::ordered_json;

struct MethodsCommand {
  bool json = false;
  bool audit = false;
  std::string model;
  std::string file;
  std::string keep = "25%";
  std::vector<std::string> methods;
  std::size_t n_tokens = 2048;
  std::size_t n_threads = 0;
  std::uint64_t seed = 1;
};

void print_methods() {
  const Registry registry = builtin_methods();
  std::string stepping;
  std::printf("Presets (--method NAME):\n");
  for (const Registry::Preset& preset : registry.presets()) {
    std::printf("  %-12s %s", preset.name.c_str(), preset.summary.c_str());
    if (!preset.citation.empty()) std::printf(" (%s)", preset.citation.c_str());
    const Method method = registry.parse(preset.name);
    std::printf("\n               = %s\n", method.spec.c_str());
    if (method.can_step()) stepping += " " + preset.name;
  }
  std::printf(
      "\nAfter one of these, decode=step keeps the cache at its size while text is generated "
      "(decode=once, the\ndefault, condenses the prompt alone):%s\n",
      stepping.c_str());
  std::printf(
      "\nStages (--method 'KIND=NAME(PARAMETER=VALUE,...) ...', or after a preset to change "
      "it):\n");
  for (const Registry::Stage& stage : registry.stages()) {
    std::printf("  %s=%s  %s", stage_kind_name(stage.kind), stage.name.c_str(),
                stage.summary.c_str());
    if (!stage.citation.empty()) std::printf(" (%s)", stage.citation.c_str());
    std::printf("\n");
    for (const FieldInfo& field : stage.fields)
      std::printf("      %s=%s  (%s) %s\n", field.name.c_str(), field.value.c_str(),
                  field.domain.c_str(), field.help.c_str());
  }
  for (const Registry::FileStage& stage : registry.file_stages())
    std::printf("  %s=%s(path=\"FILE\")  %s (%s)\n", stage_kind_name(stage.kind),
                stage.name.c_str(), stage.summary.c_str(), stage.citation.c_str());
}

// What a method reads of a prompt is a function of its length, so it is told for one length. No
// window of the registry is as long: queries of all tokens are told from those of the last.
constexpr std::size_t kTokensOfNeeds = 8192;

Json needs_of(const Method& method) {
  const Observation needed = method.observation(kTokensOfNeeds);
  const bool all_layers = (method.layers != nullptr && method.layers->sees_scores()) ||
                          (method.compensator != nullptr && method.compensator->needs_all_layers());
  return {{"of_tokens", kTokensOfNeeds},
          {"queries", needed.n_queries},
          {"block", needed.block},
          {"repeat_chunk", needed.repeat_chunk},
          {"hidden_cosine", needed.hidden_cosine},
          {"all_layers", all_layers}};
}

Json registry_json() {
  const Registry registry = builtin_methods();
  Json presets = Json::array();
  for (const Registry::Preset& preset : registry.presets()) {
    const Method method = registry.parse(preset.name);
    presets.push_back({{"name", preset.name},
                       {"citation", preset.citation},
                       {"summary", preset.summary},
                       {"stages", preset.stages},
                       {"method", method.spec},
                       {"decode_step", method.can_step()},
                       {"needs", needs_of(method)}});
  }
  Json stages = Json::array();
  for (const Registry::Stage& stage : registry.stages()) {
    Json fields = Json::array();
    for (const FieldInfo& field : stage.fields)
      fields.push_back({{"name", field.name},
                        {"default", field.value},
                        {"domain", field.domain},
                        {"help", field.help}});
    stages.push_back({{"kind", stage_kind_name(stage.kind)},
                      {"name", stage.name},
                      {"citation", stage.citation},
                      {"summary", stage.summary},
                      {"decode_step", stage.steps},
                      {"fields", fields}});
  }
  Json file_stages = Json::array();
  for (const Registry::FileStage& stage : registry.file_stages())
    file_stages.push_back({{"kind", stage_kind_name(stage.kind)},
                           {"name", stage.name},
                           {"citation", stage.citation},
                           {"summary", stage.summary}});
  return {{"version", PRECIS_VERSION},
          {"presets", presets},
          {"stages", stages},
          {"file_stages", file_stages}};
}

std::vector<EvalMethod> audited_methods(const MethodsCommand& command) {
  std::vector<std::string> specs = split_all(command.methods);
  const Registry registry = builtin_methods();
  if (command.methods.empty())
    for (const Registry::Preset& preset : registry.presets()) specs.push_back(preset.name);
  return parse_methods(specs, {command.keep}, {"f16"}, {"f16"});
}

void audit(const MethodsCommand& command) {
  if (command.model.empty() || command.file.empty())
    throw Error(ErrorCode::kInvalidArgument, "--audit needs a model (-m) and a text (-f)");
  // What can be refused without the model is refused first.
  AuditOptions options;
  options.methods = audited_methods(command);
  options.seed = command.seed;
  const TextFile text = read_text_file(command.file);
  catch_interrupt();
  options.cancel = &interrupt_flag();
  // Fixed ways, so that what is found does not hang on a measurement.
  const auto engine =
      Engine::load(command.model, {command.n_threads, MatmulMode::kSgemm, WeightsMode::kFile});
  std::vector<Token> tokens = engine->tokenizer().tokenize(text.text, true, false);
  if (tokens.size() > command.n_tokens) tokens.resize(command.n_tokens);
  ProgressBar bar("auditing");
  options.progress = [&bar](double fraction) { bar.update(fraction); };
  const MethodAudit found = audit_methods(engine, tokens, options);
  bar.finish();
  const AuditSetting setting{std::filesystem::path(command.model).filename().string(),
                             sha256_of_file(command.model),
                             std::filesystem::path(command.file).filename().string(),
                             options.methods.front().budget.print(), command.seed};
  const std::string out =
      command.json ? audit_json(found, options, setting) : print_audit(found, options, setting);
  std::fputs(out.c_str(), stdout);
  std::fflush(stdout);  // before what main says of faults
  const std::string faults = audit_faults(found, options);
  if (!faults.empty()) throw Error(ErrorCode::kInternal, "audit: " + faults);
}

void run(const MethodsCommand& command) {
  if (command.audit)
    audit(command);
  else if (command.json)
    std::printf("%s\n", registry_json().dump().c_str());
  else
    print_methods();
}

}  // namespace

Command add_methods(CLI::App& parent) {
  auto o = std::make_shared<MethodsCommand>();
  CLI::App* c = parent.add_subcommand(
      "methods", "List the compression methods, their stages and parameters, or audit them");
  c->add_flag("--json", o->json, "Print one JSON object");
  CLI::Option* wanted =
      c->add_flag("--audit", o->audit,
                  "Condense one text by every method and fail if two of them keep the same");
  // Only the model and the text listen to the environment: a number there that cannot be read must
  // not spoil the list.
  c->add_option("-m,--model", o->model, "With --audit: GGUF file")->envname("PRECIS_ARG_MODEL");
  c->add_option("-f,--file", o->file, "With --audit: text ('-': standard input)")
      ->envname("PRECIS_ARG_FILE");
  c->add_option("--method", o->methods, "With --audit: SPECs (default: every preset)")
      ->allow_extra_args(false)
      ->needs(wanted);
  c->add_option("--keep", o->keep,
                "With --audit: what every method may keep, in bytes of cache; see 'run --help'")
      ->capture_default_str()
      ->needs(wanted);
  c->add_option("--tokens", o->n_tokens, "With --audit: tokens of the text, at most")
      ->capture_default_str()
      ->check(CLI::Range(1u, 1u << 30))
      ->needs(wanted);
  c->add_option("-t,--threads", o->n_threads, "With --audit: threads (0: one per core)")
      ->check(CLI::Range(0u, 512u))
      ->needs(wanted);
  c->add_option("-s,--seed", o->seed, "With --audit: seed of methods that draw")
      ->capture_default_str()
      ->needs(wanted);
  return [o] { run(*o); };
}

}  // namespace precis::app
