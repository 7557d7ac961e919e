// Runs a sample through methods: one prefill of its document serves every method, budget, query
// mode and question.
#pragma once

#include <memory>
#include <string>

#include "eval/eval_method.h"
#include "tasks/sample.h"

namespace precis {

// Answers are greedy. Order of rows: for kAgnostic every method with all questions, for kAware
// every question with all methods. With options.kept_maps a row about what was kept (kept_map.h)
// comes after a method's answers, for sample 0, its first question, the first query mode and
// methods other than `full`. Throws Error(kInvalidArgument) if a prompt and its answer do not fit
// the model's context (both numbers), and what condensing throws.
EvalRows run_sample(const std::shared_ptr<const Engine>& engine, const std::string& suite,
                    const TaskSample& sample, const EvalOptions& options);

// How many rows run_sample() gives.
std::size_t count_rows(const TaskSample& sample, const EvalOptions& options);

}  // namespace precis
