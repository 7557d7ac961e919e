// What a search for budgets of layers (budget_search.h) minimises: how far a condensed cache is
// from the full one, over passages (fidelity.h).
//
// Every passage is read once; a candidate costs a compression and a reading of the continuation in
// one call. Held until the end: for each passage the dense cache of its prefix, and the full
// cache's logits, 4 n_continuation n_vocab bytes.
#pragma once

#include <memory>
#include <vector>

#include "engine/session.h"
#include "eval/eval_method.h"
#include "eval/fidelity.h"

namespace precis {

class BudgetObjective {
 public:
  // method: the one whose budgets are searched, at its budget and in its row types. progress: after
  // each passage. Throws as run_fidelity() does, and Error(kInvalidArgument) for a method that
  // keeps everything, at this budget too.
  BudgetObjective(const std::shared_ptr<const Engine>& engine, const std::vector<Passage>& passages,
                  const EvalMethod& method, std::uint64_t seed, const CancelFlag* cancel,
                  const std::function<void(double fraction)>& progress);

  // KL to the full cache in nats a token: the mean over the passages of FidelityRow::mean_kl. The
  // method must read what the constructor's did.
  double mean_kl(const Method& method) const;

 private:
  struct Reference {
    Session dense;
    std::vector<Token> read;    // the continuation without its last token
    std::vector<float> logits;  // [read, n_vocab], of the full cache
  };

  EvalMethod method_;
  std::uint64_t seed_;
  const CancelFlag* cancel_;
  std::vector<Reference> references_;
};

}  // namespace precis
