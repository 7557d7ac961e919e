#include "eval/task_run.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "engine/generate.h"
#include "engine/process_memory.h"
#include "eval/kept_map.h"
#include "report/content_hash.h"
#include "tasks/metrics.h"

namespace precis {
namespace {

double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

std::string hash_of(const EvalPrompt& prompt) {
  std::string bytes;
  for (const auto* part : {&prompt.document, &prompt.question, &prompt.ending})
    for (const Token token : *part)
      for (int shift = 0; shift < 32; shift += 8)
        bytes += static_cast<char>((static_cast<std::uint32_t>(token) >> shift) & 0xff);
  return sha256_of_bytes(bytes);
}

void check_room(const Engine& engine, const TaskSample& sample, const EvalPrompt& prompt) {
  const std::size_t n = prompt.size() + sample.rule.max_new_tokens;
  if (n > engine.config().n_ctx_train)
    throw Error(ErrorCode::kInvalidArgument,
                concat("sample ", sample.index, " of task ", sample.task, " has ", prompt.size(),
                       " tokens and ", sample.rule.max_new_tokens,
                       " for its answer, but the model's context is ", engine.config().n_ctx_train,
                       "; choose a smaller length"));
}

std::vector<Token> joined(const std::vector<Token>& a, const std::vector<Token>& b) {
  std::vector<Token> out = a;
  out.insert(out.end(), b.begin(), b.end());
  return out;
}

bool has_map(const TaskSample& sample, const EvalOptions& options, const EvalMethod& method) {
  return options.kept_maps && sample.index == 0 && !method.method.is_full();
}

class SampleRun {
 public:
  SampleRun(std::shared_ptr<const Engine> engine, const std::string& suite,
            const TaskSample& sample, const EvalOptions& options)
      : engine_(std::move(engine)),
        unit_{suite, sample.task, sample.length, sample.index},
        sample_(sample),
        options_(options),
        control_{{}, options.cancel} {
    for (const TaskQuestion& question : sample.questions) {
      prompts_.push_back(make_eval_prompt(*engine_, sample_, question, options_.use_template));
      check_room(*engine_, sample_, prompts_.back());
      PRECIS_CHECK(prompts_.back().document == prompts_[0].document, sample.task, sample.index);
    }
  }

  EvalRows run() {
    Session dense = read(prompts_[0].document);
    for (const QueryMode mode : options_.queries) {
      std::vector<std::size_t> questions(prompts_.size());
      for (std::size_t q = 0; q < questions.size(); ++q) questions[q] = q;
      if (mode == QueryMode::kAgnostic) {
        answer(dense, mode, questions);
        continue;
      }
      for (const std::size_t q : questions) answer(read_question(dense, prompts_[q]), mode, {q});
    }
    return std::move(out_);
  }

 private:
  Session read(const std::vector<Token>& tokens) const {
    Session session(engine_);
    session.prefill(tokens, joint_observation(options_.methods, tokens.size()), control_);
    return session;
  }

  // The document's session and the question after it.
  Session read_question(const Session& dense, const EvalPrompt& prompt) const {
    const std::size_t n = prompt.document.size() + prompt.question.size();
    const Observation observation = joint_observation(options_.methods, n);
    // Shorter than a block that methods watch: nothing to go on with.
    if (prompt.document.size() < observation.block)
      return read(joined(prompt.document, prompt.question));
    Session session = dense.fork();
    if (!prompt.question.empty()) session.prefill(prompt.question, observation, control_);
    return session;
  }

  // These questions by every method, condensed from one dense prompt.
  void answer(const Session& dense, QueryMode mode, const std::vector<std::size_t>& questions) {
    for (const EvalMethod& method : options_.methods) {
      const bool map =
          has_map(sample_, options_, method) && mode == options_.queries[0] && questions[0] == 0;
      Session session = dense.fork();
      const CondenseRequest request{method.method, method.budget, options_.seed, method.rows, map};
      const CompressionReport report = session.compress(request, control_);
      for (const std::size_t q : questions) {
        ScoreRow row;
        row.key = method_key(method, unit_);
        row.key.query = query_mode_name(mode);
        row.key.question = q;
        for (const std::vector<std::size_t>& layer : report.entries)
          for (const std::size_t n : layer) row.n_entries += n;
        answer(session, mode, prompts_[q], std::move(row));
      }
      if (!map) continue;
      const EvalPrompt& prompt = prompts_[questions[0]];
      KeptRow row = map_kept(
          session, report,
          mode == QueryMode::kAware ? joined(prompt.document, prompt.question) : prompt.document);
      row.key = method_key(method, unit_);
      row.key.query = query_mode_name(mode);
      out_.rows.emplace_back(std::move(row));
    }
  }

  void answer(const Session& condensed, QueryMode mode, const EvalPrompt& prompt, ScoreRow row) {
    const TaskQuestion& question = sample_.questions[row.key.question];
    const std::vector<Token> rest =
        mode == QueryMode::kAware ? prompt.ending : joined(prompt.question, prompt.ending);
    TimingRow time;
    time.key = row.key;
    Session session = condensed.fork();
    const auto start = std::chrono::steady_clock::now();
    session.extend(rest, 1, control_);
    time.question_ms = milliseconds_since(start);
    Sampler sampler{SamplerOptions{}};
    GenerateOptions wanted;
    wanted.max_tokens = sample_.rule.max_new_tokens;
    wanted.stop_at_newline = sample_.rule.stop_at_newline;
    const Generation generation = generate(session, sampler, wanted, {}, control_);
    row.used_template = prompt.used_template;
    row.metric = metric_name(sample_.rule.metric);
    row.score = score_answer(sample_.rule, question, generation.text);
    row.exact = is_exact(sample_.rule, question, generation.text);
    row.chance = sample_.rule.chance;
    row.n_context = prompt.size() - rest.size();
    row.n_question = rest.size();
    row.n_answer = generation.tokens.size();
    row.ended = generation.ended;
    row.n_truncated = sample_.n_truncated;
    row.kv_bytes = condensed.kv_bytes();
    row.kv_bytes_full = condensed.kv_bytes_full();
    row.prompt_sha256 = hash_of(prompt);
    row.answer = generation.text;
    row.references = question.references;
    out_.rows.emplace_back(std::move(row));
    time.prefill_ms = condensed.prefill_ms();
    time.compress_ms = condensed.compress_ms();
    time.decode_ms = generation.decode_ms;
    time.n_decoded = generation.n_decoded;
    time.peak_bytes = peak_resident_bytes();
    out_.times.push_back(std::move(time));
  }

  std::shared_ptr<const Engine> engine_;
  const UnitKey unit_;
  const TaskSample& sample_;
  const EvalOptions& options_;
  const CallControl control_;
  std::vector<EvalPrompt> prompts_;  // [questions]
  EvalRows out_;
};

}  // namespace

EvalRows run_sample(const std::shared_ptr<const Engine>& engine, const std::string& suite,
                    const TaskSample& sample, const EvalOptions& options) {
  PRECIS_CHECK(!sample.questions.empty() && !options.methods.empty() && !options.queries.empty(),
               sample.task);
  return SampleRun(engine, suite, sample, options).run();
}

std::size_t count_rows(const TaskSample& sample, const EvalOptions& options) {
  std::size_t n = options.queries.size() * options.methods.size() * sample.questions.size();
  for (const EvalMethod& method : options.methods) n += has_map(sample, options, method) ? 1 : 0;
  return n;
}

}  // namespace precis
