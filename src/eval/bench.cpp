#include "eval/bench.h"

#include <algorithm>
#include <cstdint>
#include <random>

#include "base/error.h"
#include "engine/batch.h"
#include "engine/process_memory.h"
#include "eval/bench_figures.h"
#include "eval/statistics.h"
#include "eval/synthetic_cache.h"

namespace precis {
namespace {

// The first decoded token of a fork builds the graph, so it is not timed.
constexpr std::size_t kUntimedTokens = 1;
// Prompts of further sessions are drawn from other seeds than every test's own tokens.
constexpr std::uint64_t kSessionSalt = 1000;

class Bench {
 public:
  Bench(const std::shared_ptr<const Engine>& engine, const BenchOptions& options,
        const ReadBandwidth& bandwidth, const Clock& clock)
      : engine_(engine), options_(options), bandwidth_(bandwidth), clock_(clock) {}

  std::vector<BenchRow> run();

 private:
  // Sessions that read the depth, and what that cost.
  struct Base {
    std::vector<Session> sessions;
    BenchRow row;
    RowTypes rows;
  };

  std::vector<Token> tokens(std::size_t n, std::uint64_t salt) const;
  void check() const;
  Base make_base(const BenchMethod& method, std::size_t depth, std::size_t n_more) const;
  void measure(std::vector<BenchRow> rows, const std::vector<Contender>& contenders);
  void test_prompt(std::size_t n_prompt);
  void test_extend(std::vector<Base>& bases, std::size_t n_prompt);
  void test_decode(std::vector<Base>& bases, std::size_t n_gen);
  BenchRow blank(const BenchMethod& method) const;
  StepBytes step_bytes() const {
    return {engine_->model().weight_totals().step_bytes, engine_->config().kv_bytes_per_token()};
  }
  CondenseRequest request(const BenchMethod& m) const {
    return {m.method, m.budget, options_.seed, m.rows};
  }

  std::shared_ptr<const Engine> engine_;
  const BenchOptions& options_;
  const ReadBandwidth& bandwidth_;
  const Clock& clock_;
  std::size_t n_tests_ = 0;
  std::size_t n_done_ = 0;
  std::vector<BenchRow> rows_;
};

std::vector<std::size_t> without_zero(std::vector<std::size_t> list) {
  std::erase(list, std::size_t{0});
  return list;
}

// Resident memory over what was resident when it was made.
class PeakMeter {
 public:
  PeakMeter() {
    release_free_memory();
    before_ = resident_bytes();
    works_ = reset_peak_resident_bytes() && before_ > 0;
  }
  std::optional<std::size_t> bytes() const {
    if (!works_) return {};
    return peak_resident_bytes() - std::min(peak_resident_bytes(), before_);
  }

 private:
  std::size_t before_ = 0;
  bool works_ = false;
};

BenchRow Bench::blank(const BenchMethod& method) const {
  BenchRow row;
  row.label = method.label;
  row.method = method.method.spec;
  row.keep = method.method.is_full() ? "100%" : method.budget.print();
  row.type_k = row_type_name(method.rows.keys);
  row.type_v = row_type_name(method.rows.values);
  row.n_sessions = method.n_sessions;
  row.read_bandwidth_gb_s = bandwidth_.median_gb_s;
  return row;
}

std::vector<Token> Bench::tokens(std::size_t n, std::uint64_t salt) const {
  if (!options_.text.empty() && salt == 0) {
    if (options_.text.size() < n)
      throw Error(ErrorCode::kInvalidArgument,
                  concat("the text has ", options_.text.size(), " tokens but a test needs ", n));
    return {options_.text.begin(), options_.text.begin() + static_cast<std::ptrdiff_t>(n)};
  }
  std::mt19937_64 draw(options_.seed + salt);
  std::vector<Token> out(n);
  for (Token& t : out) t = static_cast<Token>(draw() % engine_->config().n_vocab);
  return out;
}

void Bench::check() const {
  if (options_.methods.empty())
    throw Error(ErrorCode::kInvalidArgument, "no method is given: nothing to measure");
  if (options_.turns.repetitions == 0)
    throw Error(ErrorCode::kInvalidArgument, "0 repetitions measure nothing");
  const auto prompts = without_zero(options_.prompts);
  const auto answers = without_zero(options_.answers);
  if ((prompts.empty() && answers.empty()) || options_.depths.empty())
    throw Error(ErrorCode::kInvalidArgument, "no test is given: -p and -n are both 0");
  const std::size_t context = engine_->config().n_ctx_train;
  std::size_t longest = prompts.empty() ? 0 : *std::max_element(prompts.begin(), prompts.end());
  if (!answers.empty())
    longest = std::max(longest, *std::max_element(answers.begin(), answers.end()) + kUntimedTokens);
  const std::size_t deepest = *std::max_element(options_.depths.begin(), options_.depths.end());
  const std::size_t needed = longest + (options_.synthetic ? 1 : deepest);
  if (needed > context)
    throw Error(ErrorCode::kInvalidArgument,
                concat("depth ", options_.synthetic ? 0 : deepest, " and a test of ", longest,
                       " tokens need ", needed, " positions but the model's context is ", context,
                       options_.synthetic ? "" : "; --synthetic measures deeper"));
  // A budget that cannot be kept is better told now than after the tests before it.
  for (const BenchMethod& method : options_.methods) {
    if (options_.synthetic && method.method.steps)
      throw Error(
          ErrorCode::kUnsupported,
          concat("'", method.method.spec, "' goes on from the attention of a prompt, which ",
                 "a made-up cache lacks: measure decode=step without --synthetic"));
    for (const std::size_t depth : options_.depths) {
      if (depth > 0) condenser_for(*engine_, request(method), depth);
      for (const std::size_t n : prompts)
        if (depth == 0) condenser_for(*engine_, request(method), n);
    }
  }
}

Bench::Base Bench::make_base(const BenchMethod& method, std::size_t depth,
                             std::size_t n_more) const {
  const PeakMeter peak;
  Base base{{}, blank(method), method.rows};
  base.row.n_depth = depth;
  base.row.synthetic = depth > 0 && options_.synthetic;
  for (std::size_t i = 0; i < method.n_sessions; ++i) {
    Session& session = base.sessions.emplace_back(engine_);
    if (depth == 0) continue;
    if (options_.synthetic) {
      CondenseRequest own = request(method);
      own.seed += i;
      session.restore(synthetic_layers(*engine_, own, depth),
                      synthetic_position(engine_->config(), n_more), method.rows);
    } else {
      const std::vector<Token> text = tokens(depth, i == 0 ? 0 : kSessionSalt + i);
      const double start = clock_();
      session.condense(text, request(method));
      base.row.ttft_ms = 1e3 * (clock_() - start);
      base.row.compress_ms = session.compress_ms();
    }
    base.row.kv_bytes += session.kv_bytes();
  }
  if (depth > 0) base.row.peak_bytes = peak.bytes();
  return base;
}

void Bench::measure(std::vector<BenchRow> rows, const std::vector<Contender>& contenders) {
  if (options_.progress) options_.progress(n_done_, n_tests_, rows.front().test_name());
  const auto seconds = measure_in_turns(contenders, options_.turns, clock_);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].seconds = seconds[i];
    rows[i].ratios = paired_ratios(seconds[0], seconds[i]);
    const double tokens = static_cast<double>(rows[i].n_sessions);
    for (double& ratio : rows[i].ratios)
      ratio *= tokens / static_cast<double>(rows.front().n_sessions);
  }
  add_figures(rows, step_bytes());
  rows_.insert(rows_.end(), rows.begin(), rows.end());
  ++n_done_;
}

// A whole prompt through an empty session, one for all turns: a program that answers many prompts
// keeps its buffers too, and llama-bench keeps its context.
void Bench::test_prompt(std::size_t n_prompt) {
  const std::vector<Token> text = tokens(n_prompt, 0);
  struct Run {
    std::optional<PeakMeter> peak;
    std::vector<double> compress_ms;
    std::optional<std::size_t> peak_bytes;
    std::size_t kv_bytes = 0;
  };
  std::vector<BenchMethod> methods = options_.methods;
  std::erase_if(methods, [](const BenchMethod& m) { return m.n_sessions != 1; });
  if (methods.empty()) return;
  Session session(engine_);
  std::vector<Run> runs(methods.size());
  std::vector<Contender> contenders;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    Run& run = runs[i];
    contenders.push_back(
        {[&run] { run.peak.emplace(); },
         [&session, &text, &methods, this, i] { session.condense(text, request(methods[i])); },
         [&run, &session] {
           run.peak_bytes = std::max(run.peak_bytes, run.peak->bytes());
           run.compress_ms.push_back(session.compress_ms());
           run.kv_bytes = session.kv_bytes();
           session.reset();
         }});
  }
  std::vector<BenchRow> rows;
  for (const BenchMethod& method : methods) rows.push_back(blank(method));
  for (BenchRow& row : rows) row.n_prompt = n_prompt;
  const std::size_t first = rows_.size();
  measure(std::move(rows), contenders);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    BenchRow& row = rows_[first + i];
    // The warm-up comes first.
    const std::span<const double> timed(runs[i].compress_ms.data() + options_.turns.warmup,
                                        options_.turns.repetitions);
    row.compress_ms = median_of(timed);
    row.ttft_ms = 1e3 * median_of(row.seconds);
    row.peak_bytes = runs[i].peak_bytes;
    row.kv_bytes = runs[i].kv_bytes;
  }
}

// A prompt after a depth, token-major as in a conversation.
void Bench::test_extend(std::vector<Base>& bases, std::size_t n_prompt) {
  const std::vector<Token> text = tokens(n_prompt, 1);
  std::vector<std::optional<Session>> forks(bases.size());
  std::vector<Contender> contenders;
  std::vector<BenchRow> rows;
  for (std::size_t i = 0; i < bases.size(); ++i) {
    if (bases[i].sessions.size() != 1) continue;
    contenders.push_back({[&, i] { forks[i].emplace(bases[i].sessions[0].fork()); },
                          [&, i] { forks[i]->extend(text, 1); }, [&, i] { forks[i].reset(); }});
    rows.push_back(bases[i].row);
    rows.back().n_prompt = n_prompt;
  }
  if (!rows.empty()) measure(std::move(rows), contenders);
}

void Bench::test_decode(std::vector<Base>& bases, std::size_t n_gen) {
  const std::vector<Token> text = tokens(n_gen + kUntimedTokens, 2);
  BatchDecoder decoder(engine_);
  std::vector<std::vector<Session>> forks(bases.size());
  // One step of all sessions of a row; one alone decodes as it would in an answer.
  const auto step = [&](std::vector<Session>& sessions, Token token) {
    if (sessions.size() == 1) {
      sessions[0].extend(std::span(&token, 1), 1);
      return;
    }
    std::vector<BatchEntry> entries;
    for (Session& session : sessions) entries.push_back({&session, token});
    decoder.step(entries);
  };
  std::vector<Contender> contenders;
  std::vector<BenchRow> rows;
  for (std::size_t i = 0; i < bases.size(); ++i) {
    contenders.push_back({[&, i] {
                            for (const Session& session : bases[i].sessions)
                              forks[i].push_back(session.fork());
                            for (std::size_t t = 0; t < kUntimedTokens; ++t)
                              step(forks[i], text[t]);
                          },
                          [&, i] {
                            for (std::size_t t = kUntimedTokens; t < text.size(); ++t)
                              step(forks[i], text[t]);
                          },
                          [&, i] { forks[i].clear(); }});
    rows.push_back(bases[i].row);
    rows.back().n_gen = n_gen;
  }
  measure(std::move(rows), contenders);
}

std::vector<BenchRow> Bench::run() {
  check();
  const auto prompts = without_zero(options_.prompts);
  const auto answers = without_zero(options_.answers);
  n_tests_ = options_.depths.size() * (prompts.size() + answers.size());
  std::size_t n_more = 1;
  for (const std::size_t n : prompts) n_more = std::max(n_more, n);
  for (const std::size_t n : answers) n_more = std::max(n_more, n + kUntimedTokens);
  for (const std::size_t depth : options_.depths) {
    if (depth == 0)
      for (const std::size_t n : prompts) test_prompt(n);
    if (depth == 0 && answers.empty()) continue;
    std::vector<Base> bases;
    for (const BenchMethod& method : options_.methods) {
      // Nothing was condensed yet at depth 0: all methods are the same there.
      if (depth == 0 && !bases.empty() && bases.back().row.n_sessions == method.n_sessions)
        continue;
      if (options_.progress && depth > 0)
        options_.progress(n_done_, n_tests_, concat("depth ", depth));
      bases.push_back(make_base(method, depth, n_more));
    }
    if (depth > 0)
      for (const std::size_t n : prompts) test_extend(bases, n);
    for (const std::size_t n : answers) test_decode(bases, n);
  }
  add_break_even(rows_, step_bytes());
  return std::move(rows_);
}

}  // namespace

std::vector<double> BenchRow::speeds() const {
  std::vector<double> out;
  const auto n = static_cast<double>((n_prompt + n_gen) * n_sessions);
  for (const double s : seconds) out.push_back(n / s);
  return out;
}

std::string BenchRow::test_name() const {
  std::string name = n_gen > 0 ? concat("tg", n_gen) : concat("pp", n_prompt);
  if (n_depth > 0) name += concat(" @ d", n_depth);
  return name;
}

std::vector<BenchRow> run_bench(const std::shared_ptr<const Engine>& engine,
                                const BenchOptions& options, const ReadBandwidth& bandwidth,
                                const Clock& clock) {
  return Bench(engine, options, bandwidth, clock).run();
}

}  // namespace precis
