#include "eval/bench_growth.h"

#include <algorithm>
#include <random>

#include "base/error.h"
#include "engine/process_memory.h"
#include "eval/synthetic_cache.h"

namespace precis {
namespace {

class GrowthRun {
 public:
  GrowthRun(const std::shared_ptr<const Engine>& engine, const GrowthOptions& options,
            const Clock& clock)
      : engine_(engine), options_(options), clock_(clock) {}

  Growth run() {
    check();
    for (const std::size_t n : options_.entries) measure_entries(n);
    for (const std::size_t n : options_.prompts) measure_prompt(n);
    add_series("decode", fit_line);
    add_series("compress", fit_line);
    add_series("prefill", fit_quadratic);
    add_memory();
    return std::move(out_);
  }

 private:
  void check() const;
  void tell(const std::string& name) {
    if (options_.progress)
      options_.progress(n_done_, options_.entries.size() + options_.prompts.size(), name);
    ++n_done_;
  }
  std::vector<Token> tokens(std::size_t n) const;
  std::size_t distinct_layers(std::size_t n_entries) const;
  void measure_entries(std::size_t n_entries);
  void measure_prompt(std::size_t n_prompt);
  void add_series(const std::string& name,
                  std::optional<Fit> (*fit)(std::span<const double>, std::span<const double>));
  void add_memory();

  std::shared_ptr<const Engine> engine_;
  const GrowthOptions& options_;
  const Clock& clock_;
  std::size_t n_done_ = 0;
  Growth out_;
};

void GrowthRun::check() const {
  const std::size_t context = engine_->config().n_ctx_train;
  for (const std::size_t n : options_.prompts)
    if (n == 0 || n > context)
      throw Error(ErrorCode::kInvalidArgument,
                  concat("a prompt of ", n, " tokens but the model's context is ", context));
  for (const std::size_t n : options_.entries)
    if (n == 0) throw Error(ErrorCode::kInvalidArgument, "a cache of 0 entries measures nothing");
  if (options_.turns.repetitions == 0 || options_.n_gen == 0)
    throw Error(ErrorCode::kInvalidArgument, concat(options_.turns.repetitions, " repetitions of ",
                                                    options_.n_gen, " tokens measure nothing"));
  if (options_.condense.method.is_full())
    throw Error(ErrorCode::kInvalidArgument,
                "the growth of condensing needs a method that condenses, not 'full'");
}

std::vector<Token> GrowthRun::tokens(std::size_t n) const {
  std::mt19937_64 draw(options_.condense.seed);
  std::vector<Token> out(n);
  for (Token& t : out) t = static_cast<Token>(draw() % engine_->config().n_vocab);
  return out;
}

// At least two layers have rows of their own: one alone could stay in a cache between its uses.
std::size_t GrowthRun::distinct_layers(std::size_t n_entries) const {
  const ModelConfig& c = engine_->config();
  const std::size_t layer_bytes = n_entries * c.n_kv_heads * c.head_dim * 2 * sizeof(Half);
  const std::size_t n_layers = engine_->compressible_indices().size();
  const std::size_t affordable = options_.memory_bytes / std::max<std::size_t>(layer_bytes, 1);
  return options_.memory_bytes == 0 || affordable >= n_layers
             ? 0
             : std::max<std::size_t>(affordable, 2);
}

void GrowthRun::measure_entries(std::size_t n_entries) {
  tell(concat("decode over ", n_entries, " entries"));
  const ModelConfig& c = engine_->config();
  const std::size_t n_distinct = distinct_layers(n_entries);
  CondenseRequest whole;  // no stages: keeps every entry
  whole.method.spec = "full";
  whole.seed = options_.condense.seed;
  whole.rows = options_.condense.rows;
  release_free_memory();
  const std::size_t before = resident_bytes();
  Session base(engine_);
  base.restore(synthetic_layers(*engine_, whole, n_entries, n_distinct),
               synthetic_position(c, options_.n_gen + 1), whole.rows);
  release_free_memory();
  const std::size_t after = resident_bytes();
  const std::vector<Token> text = tokens(options_.n_gen + 1);
  std::optional<Session> fork;
  const Contender decode{[&] {  // the first token builds the graph
                           fork.emplace(base.fork());
                           fork->extend(std::span(text).first(1), 1);
                         },
                         [&] {
                           for (std::size_t t = 1; t < text.size(); ++t)
                             fork->extend(std::span(text).subspan(t, 1), 1);
                         },
                         [&] { fork.reset(); }};
  const auto seconds = measure_in_turns(std::span(&decode, 1), options_.turns, clock_).front();
  out_.points.push_back({"decode", n_entries,
                         1e3 * median_of(seconds) / static_cast<double>(options_.n_gen), 0,
                         n_distinct});
  if (before == 0 || after <= before) return;
  const std::size_t n_layers = n_distinct > 0 ? n_distinct : engine_->compressible_indices().size();
  const std::size_t head_bytes = row_bytes(whole.rows, c.head_dim, n_entries);
  out_.points.push_back({"memory", n_entries, static_cast<double>(after - before),
                         static_cast<double>(n_layers * c.n_kv_heads * head_bytes), n_distinct});
}

void GrowthRun::measure_prompt(std::size_t n_prompt) {
  tell(concat("reading ", n_prompt, " tokens"));
  const std::vector<Token> text = tokens(n_prompt);
  std::optional<Session> session;
  std::vector<double> compress_ms;
  std::vector<double> prefill_ms;
  const Contender read{[&] { session.emplace(engine_); },
                       [&] { session->condense(text, options_.condense); },
                       [&] {
                         compress_ms.push_back(session->compress_ms());
                         session.reset();
                       }};
  const auto seconds = measure_in_turns(std::span(&read, 1), options_.turns, clock_).front();
  compress_ms.erase(compress_ms.begin(),
                    compress_ms.begin() + static_cast<std::ptrdiff_t>(options_.turns.warmup));
  for (std::size_t i = 0; i < seconds.size(); ++i)
    prefill_ms.push_back(1e3 * seconds[i] - compress_ms[i]);
  out_.points.push_back({"compress", n_prompt, median_of(compress_ms), 0, 0});
  out_.points.push_back({"prefill", n_prompt, median_of(prefill_ms), 0, 0});
}

void GrowthRun::add_series(const std::string& name,
                           std::optional<Fit> (*fit)(std::span<const double>,
                                                     std::span<const double>)) {
  std::vector<double> x;
  std::vector<double> y;
  for (const GrowthPoint& point : out_.points) {
    if (point.series != name) continue;
    x.push_back(static_cast<double>(point.n));
    y.push_back(point.measured);
  }
  const auto found = fit(x, y);
  if (!found) return;
  for (GrowthPoint& point : out_.points)
    if (point.series == name) point.fitted = found->at(static_cast<double>(point.n));
  GrowthSeries series{name, *found, {}};
  if (name == "prefill") {
    const double largest = *std::max_element(x.begin(), x.end());
    series.quadratic_share = found->quadratic * largest * largest / found->at(largest);
  }
  out_.series.push_back(std::move(series));
}

// Nothing is fitted: entries x row bytes says what it should be. Below 64 MiB the allocator's and
// the sessions' own memory is more than the 3 % that are asked for.
void GrowthRun::add_memory() {
  constexpr double kLeastBytes = 64 << 20;
  GrowthSeries series{"memory", {}, {}};
  bool any = false;
  for (const GrowthPoint& point : out_.points) {
    if (point.series != "memory" || point.fitted < kLeastBytes) continue;
    any = true;
    series.fit.worst_residual =
        std::max(series.fit.worst_residual, std::abs(point.measured - point.fitted) / point.fitted);
  }
  if (any) out_.series.push_back(std::move(series));
}

}  // namespace

Growth measure_growth(const std::shared_ptr<const Engine>& engine, const GrowthOptions& options,
                      const Clock& clock) {
  return GrowthRun(engine, options, clock).run();
}

}  // namespace precis
