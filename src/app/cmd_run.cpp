#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>

#include "app/commands.h"
#include "app/interrupt.h"
#include "app/model_run.h"
#include "app/progress_bar.h"
#include "app/run_result.h"
#include "base/error.h"
#include "engine/generate.h"
#include "engine/process_memory.h"
#include "engine/prompt.h"
#include "eval/divergence.h"
#include "methods/registry.h"
#include "report/content_hash.h"

namespace precis::app {
namespace {

struct RunOptions {
  ModelOptions model;
  CondenseOptions condense;
  AnswerOptions answer;
  std::string file;
  std::string prompt;
  bool use_template = true;
  bool json = false;
  bool compare = false;
};

// Everything said on stdout as the answer is drawn goes through here; empty for --json.
using Say = std::function<void(const std::string&)>;

struct Answered {
  Session session;        // at the end of the answer
  Session before_answer;  // a fork taken before it
  CompressionReport report;
  Generation generation;
  std::size_t kv_bytes_full = 0;
  std::size_t kv_bytes = 0;
  double question_ms = 0;
};

Answered answer(const std::shared_ptr<const Engine>& engine, const PreparedPrompt& prompt,
                const CondenseRequest& request, const RunOptions& options, const Say& say) {
  Session session(engine);
  ProgressBar bar(request.method.is_full() ? "reading" : "reading and condensing");
  CallControl control{[&](const Progress& p) { bar.update(p.fraction); }, &interrupt_flag()};
  CompressionReport report = session.condense(prompt.context, request, control);
  bar.finish();
  const std::size_t kv_bytes_full = session.kv_bytes_full();
  const std::size_t kv_bytes = session.kv_bytes();
  const auto start = std::chrono::steady_clock::now();
  if (!prompt.question.empty()) session.extend(prompt.question, 1, {{}, &interrupt_flag()});
  const double question_ms = milliseconds_since(start);
  Session before = session.fork();
  const AnswerOptions& wanted = options.answer;
  Sampler sampler(wanted.sampler);
  Generation generation = generate(session, sampler, {wanted.n_predict, wanted.ignore_end}, say,
                                   {{}, &interrupt_flag()});
  return {std::move(session), std::move(before), std::move(report), std::move(generation),
          kv_bytes_full,      kv_bytes,          question_ms};
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

double timed_extend(Session& session, Token token) {
  const auto start = std::chrono::steady_clock::now();
  session.extend(std::span(&token, 1), 1, {{}, &interrupt_flag()});
  return milliseconds_since(start);
}

// The full cache answers the same question; then both read the full cache's answer token by token,
// in turns, so that whatever else the machine does hits both alike.
FullCacheComparison compare_with_full(const std::shared_ptr<const Engine>& engine,
                                      const PreparedPrompt& prompt, const RunOptions& options,
                                      Session condensed) {
  CondenseRequest request;
  request.method = builtin_methods().parse("full");
  Answered full = answer(engine, prompt, request, options, {});
  FullCacheComparison out;
  out.answer = full.generation.text;
  out.kv_bytes = full.kv_bytes;
  out.prefill_ms = full.session.prefill_ms();
  Session& reference = full.before_answer;
  std::vector<double> full_ms;
  std::vector<double> condensed_ms;
  std::size_t n_same = 0;
  for (const Token token : full.generation.tokens) {
    const Divergence d = compare_logits(reference.last_logits(), condensed.last_logits());
    out.mean_kl += d.kl;
    out.max_kl = std::max(out.max_kl, d.kl);
    n_same += d.same_top ? 1 : 0;
    ++out.n_continuation;
    if (reference.next_position() >= engine->config().n_ctx_train) break;
    full_ms.push_back(timed_extend(reference, token));
    condensed_ms.push_back(timed_extend(condensed, token));
  }
  if (out.n_continuation > 0) {
    out.mean_kl /= static_cast<double>(out.n_continuation);
    out.same_top = static_cast<double>(n_same) / static_cast<double>(out.n_continuation);
  }
  out.full_token_ms = median(std::move(full_ms));
  out.condensed_token_ms = median(std::move(condensed_ms));
  return out;
}

PreparedPrompt read_prompt(const Engine& engine, const RunOptions& options,
                           const Document& document) {
  check_document_bytes(engine, document.text.size());
  PreparedPrompt prompt =
      prepare_prompt(engine, document.text, options.prompt, options.use_template);
  check_prompt_length(engine, prompt.context.size() + prompt.question.size(),
                      options.model.n_context);
  // Said only once the prompt is known to be usable: an error is a single line.
  say_replaced(document);
  const bool both = !options.file.empty() && !options.prompt.empty();
  if (both && prompt.question.empty())
    std::fprintf(stderr,
                 "precis: the chat template changes the message, so the question is condensed with "
                 "the document\n");
  return prompt;
}

RunResult summarise(const Answered& a, const PreparedPrompt& prompt, const RunOptions& options) {
  RunResult r;
  r.answer = a.generation.text;
  r.report = a.report;
  r.n_condensed = prompt.context.size();
  r.n_question = prompt.question.size();
  r.n_answer = a.generation.tokens.size();
  // The answer's last token was not read.
  r.next_position = a.session.next_position() + a.generation.tokens.size() - a.generation.n_decoded;
  r.kv_bytes_full = a.kv_bytes_full;
  r.kv_bytes = a.kv_bytes;
  r.kv_bytes_end = a.session.kv_bytes();
  r.prefill_ms = a.session.prefill_ms();
  r.compress_ms = a.session.compress_ms();
  r.question_ms = a.question_ms;
  r.gates = a.session.gate_tallies();
  r.decode_tokens_per_s = a.generation.tokens_per_second();
  r.peak_bytes = peak_resident_bytes();
  r.rows = options.condense.rows;
  r.seed = options.answer.sampler.seed;
  r.threads = a.session.engine()->backend().n_workers();
  r.matmul = a.session.engine()->model().matmul_report();
  r.weights = a.session.engine()->model().weights_report();
  return r;
}

void run(const RunOptions& options) {
  // What can be refused without the model is refused first.
  CondenseRequest request = condense_request(options.condense, options.answer.sampler.seed);
  if (options.file.empty() && options.prompt.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "the prompt is empty: give a document (-f) or a question (-p)");
  const Document document = read_document(options.file);
  catch_interrupt();

  const auto engine = load_engine(options.model);
  const PreparedPrompt prompt = read_prompt(*engine, options, document);
  const std::string model_sha256 = options.json ? sha256_of_file(options.model.model) : "";
  settle_budget(options.condense, prompt.context.size(), request);
  const std::size_t loaded_bytes = resident_bytes();
  reset_peak_resident_bytes();
  // The heading waits for the first word: a condensation that fails leaves stdout empty.
  bool headed = !options.compare;
  const Say speak = [&](const std::string& text) {
    if (!headed) std::fputs("--- answer from the condensed cache ---\n", stdout);
    headed = true;
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  };
  const Say say = options.json ? Say{} : speak;
  Answered condensed = answer(engine, prompt, request, options, say);
  RunResult result = summarise(condensed, prompt, options);
  result.loaded_bytes = loaded_bytes;
  result.model_sha256 = model_sha256;
  if (!options.json) speak("\n");
  if (options.compare) {
    result.full = compare_with_full(engine, prompt, options, std::move(condensed.before_answer));
    if (!options.json)
      std::printf("--- answer from the full cache ---\n%s\n", result.full->answer.c_str());
  }
  if (options.json) {
    std::printf("%s\n", to_json(result).c_str());
  } else {
    const std::string text = to_text(result);
    std::fprintf(options.compare ? stdout : stderr, "%s%s",
                 options.compare ? "--- figures ---\n" : "", text.c_str());
  }
}

}  // namespace

Command add_run(CLI::App& parent) {
  auto o = std::make_shared<RunOptions>();
  CLI::App* c = parent.add_subcommand("run", "Condense a document and answer a question from it");
  add_model(*c, o->model);
  c->add_option("-f,--file", o->file, "Document to condense ('-': standard input)")
      ->envname("PRECIS_ARG_FILE");
  c->add_option("-p,--prompt", o->prompt, "Question, read after the document was condensed")
      ->envname("PRECIS_ARG_PROMPT");
  add_condensing(*c, o->condense);
  add_seed(*c, o->answer.sampler.seed, "sampling and of methods that draw");
  add_sampling(*c, o->answer);
  add_model_speed(*c, o->model);
  c->add_flag(
      "--raw", [o](std::int64_t n) { o->use_template = n == 0; },
      "Do not use the model's chat template");
  c->add_flag("--json", o->json, "Print one JSON object");
  c->add_flag("--compare", o->compare, "Answer from the full cache too and compare both");
  return [o] { run(*o); };
}

}  // namespace precis::app
