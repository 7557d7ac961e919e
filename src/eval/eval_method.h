// What an evaluation compares, and the rows that it gives.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/session.h"
#include "eval/eval_prompt.h"
#include "report/result_row.h"

namespace precis {

// A method at a budget, in rows of some types. The budget of `full` has no effect.
struct EvalMethod {
  Method method;
  Budget budget;
  std::string label;  // short name for people
  RowTypes rows;
};

struct EvalOptions {
  std::vector<EvalMethod> methods;
  std::uint64_t seed = 0;  // of methods that draw
  const CancelFlag* cancel = nullptr;
  // Of samples with questions; passages have none.
  std::vector<QueryMode> queries = {QueryMode::kAgnostic};
  bool use_template = true;
  bool kept_maps = false;  // see run_sample()
};

// Rows of one sample or passage, always in the same order, and their times.
struct EvalRows {
  std::vector<ResultRow> rows;
  std::vector<TimingRow> times;
};

// The key of a row but for its question and query.
RowKey method_key(const EvalMethod& method, const UnitKey& unit);

// What a prefill must keep so that every method finds what it reads.
Observation joint_observation(const std::vector<EvalMethod>& methods, std::size_t n_tokens);

}  // namespace precis
