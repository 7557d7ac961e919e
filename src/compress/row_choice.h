// Whether a layer's keys bear quantising, decided by held-out error.
//
// Some layers have a few key channels that are far larger than the rest (Qwen2.5's key biases):
// rounding them moves logits by whole units. No property of the model's file tells which layers, so
// the last queries of the prompt are answered with exact and with quantised keys, and the outputs
// compared.
#pragma once

#include <cstddef>

#include "compress/stage.h"
#include "kernels/row_type.h"

namespace precis {

// Queries that the trial reads: the last ones of the prompt, as many as SnapKV's window.
constexpr std::size_t kTrialQueries = 32;
// Squared error of a layer's outputs, relative to their squared norm, above which its keys are
// stored in the next finer type.
constexpr double kMaxKeyError = 0.01;

struct KeyTrial {
  double error = 0;   // sum over queries of ||o - o'||^2, o' with quantised keys
  double energy = 0;  // sum over queries of ||o||^2
  double relative() const { return energy > 0 ? error / energy : 0; }
};

// One KV head, its whole dense list. REQUIRES: head.n_queries >= min(kTrialQueries, n_tokens).
KeyTrial try_keys(HeadView& head, RowType type);

// The next finer type: q4 -> q8_0 -> f16.
RowType finer(RowType type);

}  // namespace precis
