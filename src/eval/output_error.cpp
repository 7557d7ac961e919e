#include "eval/output_error.h"

#include <cmath>

#include "base/error.h"
#include "kernels/packed_rows.h"
#include "kernels/rope.h"

namespace precis {
namespace {

// Partial softmax states with their memory.
class States {
 public:
  States(std::size_t n_rows, std::size_t head_dim)
      : n_rows_(n_rows), head_dim_(head_dim), max_(n_rows), sum_(n_rows), out_(n_rows * head_dim) {
    reset_states(view(), n_rows, head_dim);
  }
  StateView view() { return {max_.data(), sum_.data(), out_.data()}; }
  std::vector<float> finish(std::size_t n_tokens, std::size_t group) {
    std::vector<float> output(n_rows_ * head_dim_);
    finish_states(view(), n_tokens, group, head_dim_, group * head_dim_, output.data(), nullptr);
    return output;
  }

 private:
  std::size_t n_rows_;
  std::size_t head_dim_;
  std::vector<float> max_;
  std::vector<float> sum_;
  std::vector<float> out_;
};

}  // namespace

OutputErrorProbe::OutputErrorProbe(std::shared_ptr<const Engine> engine,
                                   std::span<const Token> prefix,
                                   std::span<const Token> continuation, const CallControl& control)
    : whole_(std::move(engine)), n_prefix_(prefix.size()), n_continuation_(continuation.size()) {
  std::vector<Token> text(prefix.begin(), prefix.end());
  text.insert(text.end(), continuation.begin(), continuation.end());
  whole_.prefill(text, {n_continuation_, 0}, control);
}

std::vector<std::vector<double>> OutputErrorProbe::measure(const Session& condensed,
                                                           const CancelFlag* cancel) {
  const Engine& engine = *whole_.engine();
  const std::vector<std::size_t> layers = engine.compressible_indices();
  const std::size_t n_heads = engine.config().n_kv_heads;
  std::vector<std::vector<double>> out(layers.size(), std::vector<double>(n_heads));
  Executor& executor = engine.backend();
  std::vector<Scratch> scratch(executor.n_workers());
  std::vector<std::shared_ptr<const FrozenLayer>> frozen;
  for (const std::size_t layer : layers) frozen.push_back(condensed.condensed_layer(layer));
  // Where entries moved (positions=compact), what comes next moved with them.
  const std::int64_t moved =
      static_cast<std::int64_t>(condensed.next_position()) - static_cast<std::int64_t>(n_prefix_);
  executor.run(layers.size() * n_heads, [&](std::size_t task, std::size_t worker) {
    throw_if_cancelled(cancel);
    const std::size_t l = task / n_heads;
    const std::size_t h = task % n_heads;
    out[l][h] = measure_head(*frozen[l], layers[l], h, moved, scratch[worker]);
  });
  return out;
}

double OutputErrorProbe::measure_head(const FrozenLayer& frozen, std::size_t layer,
                                      std::size_t head, std::int64_t moved,
                                      Scratch& scratch) const {
  const ModelConfig& c = whole_.engine()->config();
  const ObservedQueries& observed = whole_.observed(layer);
  const std::size_t group = c.group();
  const std::size_t d = c.head_dim;
  const std::size_t n = n_continuation_;
  // [token, group, head_dim] from [query head, token, head_dim].
  std::vector<float> rows(n * group * d);
  for (std::size_t t = 0; t < n; ++t)
    for (std::size_t j = 0; j < group; ++j)
      std::copy_n(observed.queries.data() + ((head * group + j) * n + t) * d, d,
                  rows.data() + (t * group + j) * d);
  const QueryView queries{rows.data(), n, group, d, group * d};
  const LogitRule rule{c.attn_scale, c.attn_softcap};
  const EntryView all = whole_.tail(layer).head(head);
  PRECIS_CHECK(all.n == n_prefix_ + n, all.n, " vs ", n_prefix_ + n);
  std::vector<Visible> before(n);   // all rows up to and with the query's own
  std::vector<Visible> own(n);      // those of the continuation only
  std::vector<Visible> entries(n);  // every main entry
  std::vector<Visible> residuals(n);
  for (std::size_t t = 0; t < n; ++t) {
    const auto last = static_cast<std::uint32_t>(n_prefix_ + t + 1);
    before[t] = {0, last};
    own[t] = {static_cast<std::uint32_t>(n_prefix_), last};
    entries[t] = {0, static_cast<std::uint32_t>(frozen.n_main(head))};
    residuals[t] = {0, static_cast<std::uint32_t>(frozen.n_residual(head))};
  }
  States full(n * group, d);
  attend(queries, all, rule, before.data(), full.view(), scratch);
  States condensed(n * group, d);
  std::vector<float> moved_rows = rows;
  if (moved != 0) {
    const Rope rope = whole_.engine()->model().rope(layer);
    RopeTurn turn(rope);
    turn.set_delta(moved);
    for (std::size_t r = 0; r < n * group; ++r) turn.apply(moved_rows.data() + r * d);
  }
  attend({moved_rows.data(), n, group, d, group * d}, frozen.head(head), rule, entries.data(),
         condensed.view(), scratch);
  States later(n * group, d);
  attend(queries, all, rule, own.data(), later.view(), scratch);
  merge_states(condensed.view(), later.view(), n * group, d);
  States residual(n * group, d);
  attend(queries, frozen.residual(head), rule, residuals.data(), residual.view(), scratch);
  gate_states(frozen.gate(head), condensed.view(), residual.view(), n * group, d);
  merge_states(condensed.view(), residual.view(), n * group, d);
  const std::vector<float> reference = full.finish(n, group);
  const std::vector<float> output = condensed.finish(n, group);
  double sum = 0;
  for (std::size_t r = 0; r < n * group; ++r) {
    double error = 0;
    double norm = 0;
    for (std::size_t i = r * d; i < (r + 1) * d; ++i) {
      const auto o = static_cast<double>(reference[i]);
      error += (static_cast<double>(output[i]) - o) * (static_cast<double>(output[i]) - o);
      norm += o * o;
    }
    if (norm > 0) sum += error / norm;
  }
  return std::sqrt(sum / static_cast<double>(n * group));
}

}  // namespace precis
