#include "eval/budget_objective.h"

#include "base/error.h"
#include "eval/divergence.h"

namespace precis {

BudgetObjective::BudgetObjective(const std::shared_ptr<const Engine>& engine,
                                 const std::vector<Passage>& passages, const EvalMethod& method,
                                 std::uint64_t seed, const CancelFlag* cancel,
                                 const std::function<void(double fraction)>& progress)
    : method_(method), seed_(seed), cancel_(cancel) {
  if (method.method.is_full())
    throw Error(ErrorCode::kInvalidArgument,
                "'full' keeps everything: there are no budgets of layers to search");
  const CallControl control{{}, cancel};
  for (const Passage& passage : passages) {
    Reference own{
        Session(engine), {passage.continuation.begin(), passage.continuation.end() - 1}, {}};
    own.dense.prefill(passage.prefix, joint_observation({method}, passage.prefix.size()), control);
    Session full = own.dense.fork();
    CondenseRequest everything;  // no stages: keeps all
    everything.method.spec = "full";
    full.compress(everything, control);
    const std::span<const float> logits = full.extend(own.read, own.read.size(), control);
    own.logits.assign(logits.begin(), logits.end());
    references_.push_back(std::move(own));
    if (progress)
      progress(static_cast<double>(references_.size()) / static_cast<double>(passages.size()));
  }
}

double BudgetObjective::mean_kl(const Method& method) const {
  double sum = 0;
  for (const Reference& reference : references_) {
    const CallControl control{{}, cancel_};
    Session session = reference.dense.fork();
    const CompressionReport report =
        session.compress({method, method_.budget, seed_, method_.rows}, control);
    if (report.skipped)
      throw Error(ErrorCode::kInvalidArgument,
                  concat("at keep ", method_.budget.print(), " nothing is left out (",
                         *report.skipped, "): there are no budgets of layers to search"));
    const std::size_t n = reference.read.size();
    const std::size_t n_vocab = reference.logits.size() / n;
    // With decode=step, tokens read at once evict later than those of an answer.
    const std::size_t n_at_once = method.steps ? 1 : n;
    double own = 0;
    for (std::size_t t = 0; t < n; t += n_at_once) {
      const std::span<const float> logits =
          session.extend(std::span(reference.read).subspan(t, n_at_once), n_at_once, control);
      for (std::size_t i = 0; i < n_at_once; ++i)
        own += compare_logits(std::span(reference.logits).subspan((t + i) * n_vocab, n_vocab),
                              logits.subspan(i * n_vocab, n_vocab))
                   .kl;
    }
    sum += own / static_cast<double>(n);
  }
  return sum / static_cast<double>(references_.size());
}

}  // namespace precis
