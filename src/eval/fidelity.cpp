#include "eval/fidelity.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/error.h"
#include "engine/process_memory.h"
#include "eval/divergence.h"
#include "eval/output_error.h"
#include "eval/statistics.h"

namespace precis {
namespace {

// A cache that reads the continuation.
struct Reader {
  Session session;
  FidelityRow row;
  TimingRow time;
  std::vector<double> kl;
  std::size_t n_same = 0;
  double log_likelihood = 0;
};

void check_passage(const Engine& engine, const Passage& passage) {
  const std::size_t n = passage.prefix.size() + passage.continuation.size();
  if (passage.prefix.empty() || passage.continuation.empty())
    throw Error(ErrorCode::kInvalidArgument,
                concat("passage ", passage.index, " of '", passage.name, "' has ",
                       passage.prefix.size(), " tokens to condense and ",
                       passage.continuation.size(), " to read; both must be at least 1"));
  if (n > engine.config().n_ctx_train)
    throw Error(ErrorCode::kInvalidArgument,
                concat("passage ", passage.index, " of '", passage.name, "' has ", n,
                       " tokens but the model's context is ", engine.config().n_ctx_train));
}

double extend_one(Session& session, Token token, const CallControl& control) {
  const auto start = std::chrono::steady_clock::now();
  session.extend(std::span(&token, 1), 1, control);
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

Reader make_reader(const Session& dense, const Passage& passage, const EvalMethod& method,
                   OutputErrorProbe& probe, const EvalOptions& options) {
  Reader reader{dense.fork(), {}, {}, {}, 0, 0};
  const CondenseRequest request{method.method, method.budget, options.seed, method.rows};
  const CompressionReport report = reader.session.compress(request, {{}, options.cancel});
  FidelityRow& row = reader.row;
  row.key = method_key(method, {"fidelity", passage.name, passage.prefix.size(), passage.index});
  row.key.query = "agnostic";
  row.n_context = passage.prefix.size();
  row.n_continuation = passage.continuation.size();
  row.kv_bytes = reader.session.kv_bytes();
  row.kv_bytes_full = reader.session.kv_bytes_full();
  for (const std::vector<std::size_t>& layer : report.entries)
    for (const std::size_t n : layer) row.n_entries += n;
  row.output_error = probe.measure(reader.session, options.cancel);
  reader.time.key = row.key;
  reader.time.prefill_ms = dense.prefill_ms();
  reader.time.compress_ms = reader.session.compress_ms();
  return reader;
}

// The first token of the continuation is read without a comparison: before it every cache has the
// prefill's own logits.
void read_continuation(Session& full, std::vector<Reader>& readers, const Passage& passage,
                       const CallControl& control, double& log_likelihood_full) {
  const std::vector<Token>& text = passage.continuation;
  for (std::size_t t = 0; t < text.size(); ++t) {
    extend_one(full, text[t], control);
    for (Reader& reader : readers) {
      reader.time.decode_ms += extend_one(reader.session, text[t], control);
      ++reader.time.n_decoded;
    }
    if (t + 1 == text.size()) break;
    const auto next = static_cast<std::size_t>(text[t + 1]);
    log_likelihood_full += log_probability(full.last_logits(), next);
    for (Reader& reader : readers) {
      const Divergence d = compare_logits(full.last_logits(), reader.session.last_logits());
      reader.kl.push_back(d.kl);
      reader.n_same += d.same_top ? 1 : 0;
      reader.log_likelihood += log_probability(reader.session.last_logits(), next);
    }
  }
}

double rounded(double x) { return std::round(x * 1e6) / 1e6; }

}  // namespace

double nearest_rank(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(values.size())));
  const std::size_t i = std::clamp<std::size_t>(rank, 1, values.size()) - 1;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(i), values.end());
  return values[i];
}

EvalRows run_fidelity(const std::shared_ptr<const Engine>& engine, const Passage& passage,
                      const EvalOptions& options) {
  check_passage(*engine, passage);
  const CallControl control{{}, options.cancel};
  OutputErrorProbe probe(engine, passage.prefix, passage.continuation, control);
  Session dense(engine);
  dense.prefill(passage.prefix, joint_observation(options.methods, passage.prefix.size()), control);
  Session full = dense.fork();
  CondenseRequest everything;  // no stages: keeps all
  everything.method.spec = "full";
  full.compress(everything, control);
  std::vector<Reader> readers;
  for (const EvalMethod& method : options.methods)
    readers.push_back(make_reader(dense, passage, method, probe, options));
  double log_likelihood_full = 0;
  read_continuation(full, readers, passage, control, log_likelihood_full);
  EvalRows out;
  for (Reader& reader : readers) {
    FidelityRow& row = reader.row;
    const double n = std::max<double>(1, static_cast<double>(reader.kl.size()));
    row.mean_kl = mean_of(reader.kl);
    row.median_kl = median_of(reader.kl);
    row.p99_kl = nearest_rank(reader.kl, 0.99);
    row.same_top = static_cast<double>(reader.n_same) / n;
    row.log_likelihood = reader.log_likelihood / n;
    row.log_likelihood_full = log_likelihood_full / n;
    for (std::vector<double>& heads : row.output_error)
      for (double& error : heads) error = rounded(error);
    reader.time.peak_bytes = peak_resident_bytes();
    out.rows.emplace_back(std::move(row));
    out.times.push_back(std::move(reader.time));
  }
  return out;
}

}  // namespace precis
