#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "app/cache_text.h"
#include "app/commands.h"
#include "app/interrupt.h"
#include "app/model_run.h"
#include "app/progress_bar.h"
#include "base/error.h"
#include "engine/generate.h"
#include "engine/process_memory.h"
#include "engine/prompt.h"
#include "store/cache_file.h"

namespace precis::app {
namespace {

struct BuildOptions {
  ModelOptions model;
  CondenseOptions condense;
  std::string file;
  std::string output;
  std::uint32_t seed = 0;
  bool use_template = true;
  bool json = false;
};

struct AskOptions {
  ModelOptions model;
  AnswerOptions answer;
  std::string cache;
  std::string prompt;
  bool json = false;
};

struct LookOptions {
  std::string cache;
  std::string model;  // empty: any
  bool json = false;
};

// A slip of the keyboard must not cost the model or the text.
void refuse_input_as_output(const BuildOptions& options) {
  for (const std::string& input : {options.model.model, options.file}) {
    std::error_code ignored;
    if (input == options.output || std::filesystem::equivalent(input, options.output, ignored))
      throw Error(ErrorCode::kInvalidArgument,
                  concat("the cache would overwrite '", input,
                         "', which is read: give another name with -o"));
  }
}

void print(const CacheSummary& summary, const std::string& path, bool json) {
  const std::string text = json ? to_json(summary, path) + "\n" : to_text(summary, path);
  std::fputs(text.c_str(), stdout);
}

void build(const BuildOptions& options) {
  // What can be refused without the model is refused first.
  CondenseRequest request = condense_request(options.condense, options.seed);
  if (request.method.steps)
    throw Error(ErrorCode::kUnsupported,
                "a cache with decode=step cannot be saved: what its method remembers of every "
                "entry has no form in a file; use decode=once");
  refuse_input_as_output(options);
  const Document document = read_document(options.file);
  check_can_save(options.output);
  catch_interrupt();

  const ModelFingerprint model = fingerprint_of(options.model.model);
  const auto engine = load_engine(options.model);
  check_document_bytes(*engine, document.text.size());
  CacheMeta meta;
  meta.writer = "precis " PRECIS_VERSION;
  meta.document = document.text;
  meta.use_template = options.use_template;
  meta.seed = options.seed;
  meta.tokens = prepare_document(*engine, document.text, options.use_template);
  check_prompt_length(*engine, meta.tokens.size(), options.model.n_context);
  say_replaced(document);
  settle_budget(options.condense, meta.tokens.size(), request);

  Session session(engine);
  ProgressBar bar(request.method.is_full() ? "reading" : "reading and condensing");
  meta.report =
      session.condense(meta.tokens, request,
                       {[&](const Progress& p) { bar.update(p.fraction); }, &interrupt_flag()});
  bar.finish();
  meta.prefill_ms = session.prefill_ms();
  meta.compress_ms = session.compress_ms();
  save_session(session, model, meta, options.output);
  print(summarise_cache(options.output), options.output, options.json);
}

void ask(const AskOptions& options) {
  const CacheSummary summary = summarise_cache(options.cache);
  if (summary.meta.document.empty())
    throw Error(ErrorCode::kUnsupported,
                concat("cache file '", options.cache,
                       "' does not hold its document's text, so no question can be put behind it; "
                       "make it with 'precis cache build'"));
  const ModelFingerprint model = fingerprint_of(options.model.model);
  check_same_model(summary.model, model, options.cache);
  catch_interrupt();

  const auto engine = load_engine(options.model);
  const PreparedPrompt prompt =
      prepare_question(*engine, summary.meta.document, options.prompt, summary.meta.use_template);
  const std::vector<Token>& question = prompt.question;
  check_prompt_length(*engine, summary.n_read + question.size(), options.model.n_context);
  if (prompt.context != summary.meta.tokens)
    std::fprintf(stderr,
                 "precis: 'precis run' would now put %zu tokens before the question that are not "
                 "all the %zu of the cache (the chat template may show the date)\n",
                 prompt.context.size(), summary.n_read);
  reset_peak_resident_bytes();
  CacheAnswer out;
  const auto start = std::chrono::steady_clock::now();
  LoadedSession loaded = load_session(engine, model, options.cache);
  out.load_ms = milliseconds_since(start);
  Session& session = loaded.session;
  const auto asked = std::chrono::steady_clock::now();
  session.extend(question, 1, {{}, &interrupt_flag()});
  out.question_ms = milliseconds_since(asked);
  const auto speak = [](const std::string& text) {
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  };
  Sampler sampler(options.answer.sampler);
  out.generation = generate(session, sampler, {options.answer.n_predict, options.answer.ignore_end},
                            options.json ? std::function<void(const std::string&)>{} : speak,
                            {{}, &interrupt_flag()});
  out.n_question = question.size();
  // The answer's last token was not read.
  out.next_position =
      session.next_position() + out.generation.tokens.size() - out.generation.n_decoded;
  out.kv_bytes_end = session.kv_bytes();
  out.peak_bytes = peak_resident_bytes();
  out.seed = options.answer.sampler.seed;
  out.threads = engine->backend().n_workers();
  if (options.json) {
    std::printf("%s\n", to_json(out, summary, options.cache).c_str());
  } else {
    speak("\n");
    std::fputs(to_text(out, summary, options.cache).c_str(), stderr);
  }
}

void info(const LookOptions& options) {
  print(summarise_cache(options.cache), options.cache, options.json);
}

void verify(const LookOptions& options) {
  const CacheSummary summary = verify_cache(options.cache);
  if (!options.model.empty())
    check_same_model(summary.model, fingerprint_of(options.model), options.cache);
  std::printf("%s is sound: %zu bytes, %zu tokens%s\n", options.cache.c_str(),
              static_cast<std::size_t>(summary.file_bytes), summary.n_read,
              options.model.empty() ? "" : ", of this model");
}

void add_cache_file(CLI::App& command, std::string& path) {
  command.add_option("cache", path, "Cache file")->required();
}

Command add_build(CLI::App& parent) {
  auto o = std::make_shared<BuildOptions>();
  CLI::App* c = parent.add_subcommand("build", "Condense a document into a cache file");
  add_model(*c, o->model);
  c->add_option("-f,--file", o->file, "Document to condense ('-': standard input)")
      ->required()
      ->envname("PRECIS_ARG_FILE");
  c->add_option("-o,--output", o->output, "Cache file to write; an older one is replaced")
      ->required();
  add_condensing(*c, o->condense);
  add_seed(*c, o->seed, "methods that draw");
  add_model_speed(*c, o->model);
  c->add_flag(
      "--raw", [o](std::int64_t n) { o->use_template = n == 0; },
      "Do not use the model's chat template");
  c->add_flag("--json", o->json, "Print one JSON object");
  return [o] { build(*o); };
}

Command add_ask(CLI::App& parent) {
  auto o = std::make_shared<AskOptions>();
  CLI::App* c = parent.add_subcommand("ask", "Answer a question from a cache file");
  add_model(*c, o->model);
  add_cache_file(*c, o->cache);
  c->add_option("-p,--prompt", o->prompt, "Question about the document")
      ->required()
      ->envname("PRECIS_ARG_PROMPT");
  add_seed(*c, o->answer.sampler.seed, "sampling");
  add_sampling(*c, o->answer);
  add_model_speed(*c, o->model);
  c->add_flag("--json", o->json, "Print one JSON object");
  return [o] { ask(*o); };
}

Command add_look(CLI::App& parent, bool all) {
  auto o = std::make_shared<LookOptions>();
  CLI::App* c = all ? parent.add_subcommand("verify", "Read and check all of a cache file")
                    : parent.add_subcommand("info", "Show what a cache file holds");
  add_cache_file(*c, o->cache);
  if (all)
    c->add_option("-m,--model", o->model, "GGUF file that it must be of");
  else
    c->add_flag("--json", o->json, "Print one JSON object");
  return [o, all] { all ? verify(*o) : info(*o); };
}

}  // namespace

Command add_cache(CLI::App& parent) {
  CLI::App* c = parent.add_subcommand(
      "cache", "Condense a document once, into a file, and answer many questions from it");
  c->require_subcommand(0, 1);
  std::vector<std::pair<CLI::App*, Command>> commands;
  const auto add = [&](Command command) {
    commands.emplace_back(c->get_subcommands({}).back(), std::move(command));
  };
  add(add_build(*c));
  add(add_ask(*c));
  add(add_look(*c, /*all=*/false));
  add(add_look(*c, /*all=*/true));
  return [commands] {
    for (const auto& [parser, command] : commands)
      if (parser->parsed()) return command();
    throw Error(ErrorCode::kInvalidArgument,
                "what is to be done with a cache? build, ask, info or verify; 'precis cache "
                "--help' tells more");
  };
}

}  // namespace precis::app
