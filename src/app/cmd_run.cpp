#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>

#include "app/commands.h"
#include "app/interrupt.h"
#include "app/method_list.h"
#include "app/progress_bar.h"
#include "app/row_type_options.h"
#include "app/run_result.h"
#include "app/text_file.h"
#include "app/weights_option.h"
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
  std::string model;
  std::string file;
  std::string prompt;
  std::string method = "selkv";
  std::string matmul = "auto";
  std::string weights = "auto";
  std::string keep;  // empty: kDefaultKeep, but at least kDefaultTokens
  RowTypes rows;
  std::size_t n_context = 0;
  std::size_t n_threads = 0;
  std::size_t n_predict = 128;
  SamplerOptions sampler;
  bool use_template = true;
  bool ignore_end = false;
  bool json = false;
  bool compare = false;
};

// Without --keep a short prompt is not worth condensing below this: 256 tokens are a few MiB of
// cache.
constexpr const char* kDefaultKeep = "25%";
constexpr std::size_t kDefaultTokens = 256;

double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

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
  Sampler sampler(options.sampler);
  Generation generation = generate(session, sampler, {options.n_predict, options.ignore_end}, say,
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

void check_length(const Engine& engine, const PreparedPrompt& prompt, const RunOptions& options) {
  const std::size_t n = prompt.context.size() + prompt.question.size();
  const std::size_t model_limit = engine.config().n_ctx_train;
  const std::size_t limit =
      options.n_context == 0 ? model_limit : std::min(options.n_context, model_limit);
  if (n > limit)
    throw Error(ErrorCode::kInvalidArgument,
                concat("the prompt has ", n, " tokens but the ",
                       limit < model_limit ? "context set with -c" : "model's context", " is ",
                       limit, " tokens; shorten the prompt or use a model with a longer context"));
}

PreparedPrompt read_prompt(const Engine& engine, const RunOptions& options,
                           const TextFile& document) {
  // Tokenising takes some 40 bytes of memory a byte of text, so what cannot fit is refused before
  // it: the longest tokens of known vocabularies have 256 bytes.
  constexpr std::size_t kMaxTokenBytes = 256;
  if (document.text.size() / kMaxTokenBytes > engine.config().n_ctx_train)
    throw Error(
        ErrorCode::kInvalidArgument,
        concat("the document has ", document.text.size(), " bytes, far more than the model's ",
               "context of ", engine.config().n_ctx_train,
               " tokens; shorten it or use a model with a longer context"));
  PreparedPrompt prompt =
      prepare_prompt(engine, document.text, options.prompt, options.use_template);
  check_length(engine, prompt, options);
  // Said only once the prompt is known to be usable: an error is a single line.
  if (document.n_replaced > 0)
    std::fprintf(stderr, "precis: '%s' is not valid UTF-8; replaced by U+FFFD in %zu places\n",
                 options.file.c_str(), document.n_replaced);
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
  r.rows = options.rows;
  r.seed = options.sampler.seed;
  r.threads = a.session.engine()->backend().n_workers();
  r.matmul = a.session.engine()->model().matmul_report();
  r.weights = a.session.engine()->model().weights_report();
  return r;
}

void run(const RunOptions& options) {
  // What can be refused without the model is refused first.
  CondenseRequest request;
  request.method = parse_method(options.method);
  request.budget = Budget::parse(options.keep.empty() ? kDefaultKeep : options.keep);
  request.seed = options.sampler.seed;
  request.rows = options.rows;
  const MatmulMode matmul = parse_matmul_mode(options.matmul);
  const WeightsMode weights = parse_weights_mode(options.weights);
  if (options.file.empty() && options.prompt.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "the prompt is empty: give a document (-f) or a question (-p)");
  const TextFile document = options.file.empty() ? TextFile{} : read_text_file(options.file);
  if (!options.file.empty() && document.text.find_first_not_of(" \t\r\n\f\v") == std::string::npos)
    throw Error(ErrorCode::kInvalidArgument,
                concat("the document '", options.file, "' is empty: it has no text"));
  catch_interrupt();

  const auto engine = Engine::load(options.model, {options.n_threads, matmul, weights});
  const PreparedPrompt prompt = read_prompt(*engine, options, document);
  const std::string model_sha256 = options.json ? sha256_of_file(options.model) : "";
  if (options.keep.empty() && prompt.context.size() < 4 * kDefaultTokens)
    request.budget = Budget::parse(std::to_string(kDefaultTokens));
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
  // CLI11's own range lets NaN pass.
  const auto finite_range = [](float minimum, float maximum) {
    return CLI::Range(minimum, maximum) & CLI::Validator(
                                              [](std::string& text) {
                                                return text.find_first_of("nN") == std::string::npos
                                                           ? ""
                                                           : "'" + text + "' is not a number";
                                              },
                                              "");
  };
  auto o = std::make_shared<RunOptions>();
  CLI::App* c = parent.add_subcommand("run", "Condense a document and answer a question from it");
  c->add_option("-m,--model", o->model, "GGUF file")->required()->envname("PRECIS_ARG_MODEL");
  c->add_option("-f,--file", o->file, "Document to condense ('-': standard input)")
      ->envname("PRECIS_ARG_FILE");
  c->add_option("-p,--prompt", o->prompt, "Question, read after the document was condensed")
      ->envname("PRECIS_ARG_PROMPT");
  c->add_option("--method", o->method, "SPEC of the compression; see 'precis methods'")
      ->capture_default_str()
      ->envname("PRECIS_ARG_METHOD");
  c->add_option(
       "--keep", o->keep,
       "What may be kept: 25%, 2048 (tokens) or 512MiB (default: 25%, but at least 256 tokens); "
       "positions and biases count, so 43 tokens' bytes hold 42 entries")
      ->envname("PRECIS_ARG_KEEP");
  add_row_types(*c, o->rows);
  c->add_option("-n,--predict", o->n_predict, "Most tokens of the answer")
      ->capture_default_str()
      ->check(CLI::Range(1u, 1u << 20))
      ->envname("PRECIS_ARG_N_PREDICT");
  c->add_option("-c,--ctx-size", o->n_context,
                "Refuse prompts longer than this (0: the model's context)")
      ->check(CLI::Range(0u, 1u << 30))
      ->envname("PRECIS_ARG_CTX_SIZE");
  c->add_option("-t,--threads", o->n_threads, "Threads (0: one per core)")
      ->check(CLI::Range(0u, 512u))
      ->envname("PRECIS_ARG_THREADS");
  c->add_option("--matmul", o->matmul,
                "Products of prompt and weights: auto (measured), ggml, or sgemm (f32)")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "ggml", "sgemm"}))
      ->envname("PRECIS_ARG_MATMUL");
  add_weights_mode(*c, o->weights);
  c->add_option("-s,--seed", o->sampler.seed, "Seed of sampling and of methods that draw")
      ->envname("PRECIS_ARG_SEED");
  c->add_option("--temp", o->sampler.temperature, "Temperature (0: greedy)")
      ->capture_default_str()
      ->check(finite_range(0.0f, 100.0f))
      ->envname("PRECIS_ARG_TEMP");
  c->add_option("--top-k", o->sampler.top_k, "Draw from the k likeliest (0: all)")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 30))
      ->envname("PRECIS_ARG_TOP_K");
  c->add_option("--top-p", o->sampler.top_p,
                "Draw from the likeliest that reach this mass (1: all)")
      ->capture_default_str()
      ->check(finite_range(0.0f, 1.0f))
      ->envname("PRECIS_ARG_TOP_P");
  c->add_option("--min-p", o->sampler.min_p,
                "Drop tokens below this share of the likeliest (0: none)")
      ->capture_default_str()
      ->check(finite_range(0.0f, 1.0f))
      ->envname("PRECIS_ARG_MIN_P");
  c->add_flag(
      "--raw", [o](std::int64_t n) { o->use_template = n == 0; },
      "Do not use the model's chat template");
  c->add_flag("--ignore-eos", o->ignore_end, "Go on after the model ends its answer");
  c->add_flag("--json", o->json, "Print one JSON object");
  c->add_flag("--compare", o->compare, "Answer from the full cache too and compare both");
  return [o] { run(*o); };
}

}  // namespace precis::app
