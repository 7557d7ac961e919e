#include "eval/eval_method.h"

#include <algorithm>

#include "base/error.h"
#include "compress/row_choice.h"

namespace precis {

RowKey method_key(const EvalMethod& method, const UnitKey& unit) {
  RowKey key;
  key.suite = unit.suite;
  key.task = unit.task;
  key.length = unit.length;
  key.index = unit.index;
  key.label = method.label;
  key.method = method.method.spec;
  key.keep = method.method.is_full() ? "100%" : method.budget.print();
  key.type_k = row_type_name(method.rows.keys);
  key.type_v = row_type_name(method.rows.values);
  return key;
}

Observation joint_observation(const std::vector<EvalMethod>& methods, std::size_t n_tokens) {
  Observation joint;
  for (const EvalMethod& method : methods) {
    Observation wanted = method.method.observation(n_tokens);
    // Quantised keys are tried on the last queries.
    if (method.rows.keys != RowType::kF16)
      wanted.n_queries = std::max(wanted.n_queries, std::min(kTrialQueries, n_tokens));
    // Blocks of another width come from the queries of all tokens.
    const bool other = joint.block != 0 && wanted.block != 0 && joint.block != wanted.block;
    joint.n_queries = other ? n_tokens : std::max(joint.n_queries, wanted.n_queries);
    joint.block = std::max(joint.block, wanted.block);
    if (joint.repeat_chunk != 0 && wanted.repeat_chunk != 0 &&
        joint.repeat_chunk != wanted.repeat_chunk)
      throw Error(ErrorCode::kInvalidArgument,
                  concat(method.label, " repeats the prompt in chunks of ", wanted.repeat_chunk,
                         " tokens, another method in chunks of ", joint.repeat_chunk,
                         ": evaluate them in two runs"));
    joint.repeat_chunk = std::max(joint.repeat_chunk, wanted.repeat_chunk);
    joint.hidden_cosine = joint.hidden_cosine || wanted.hidden_cosine;
  }
  return joint;
}

}  // namespace precis
