// What `precis run` did, and how it is shown.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compress/report.h"
#include "kernels/sharpness_gate.h"
#include "model/matmul_choice.h"
#include "model/weight_forms.h"

namespace precis::app {

// The same question answered from the full cache, in the same process and run.
struct FullCacheComparison {
  std::string answer;
  std::size_t kv_bytes = 0;
  double prefill_ms = 0;
  std::size_t n_continuation = 0;  // teacher-forced tokens: the full cache's own answer
  double mean_kl = 0;              // KL(full || condensed), nats a token
  double max_kl = 0;
  double same_top = 0;  // share of tokens where both prefer the same one
  // Median time of one token, both caches decoding the same tokens in turns.
  double full_token_ms = 0;
  double condensed_token_ms = 0;
};

struct RunResult {
  std::string answer;
  CompressionReport report;
  std::size_t n_condensed = 0;
  std::size_t n_question = 0;
  std::size_t n_answer = 0;
  std::size_t next_position = 0;
  std::size_t kv_bytes_full = 0;  // right after the prompt
  std::size_t kv_bytes = 0;
  std::size_t kv_bytes_end = 0;  // after the answer: with what came after the prompt
  double prefill_ms = 0;
  double compress_ms = 0;
  double question_ms = 0;
  double decode_tokens_per_s = 0;
  // What gates did to question and answer, [compressible layer][KV head].
  std::vector<std::vector<GateTally>> gates;
  std::size_t loaded_bytes = 0;  // resident after loading the model
  std::size_t peak_bytes = 0;    // most resident until the answer was complete
  RowTypes rows;
  std::uint32_t seed = 0;
  std::size_t threads = 0;
  MatmulReport matmul;
  WeightsReport weights;
  std::string model_sha256;  // of the file, for --json
  std::optional<FullCacheComparison> full;
};

// One JSON object on one line.
std::string to_json(const RunResult& result);
// A few lines for a person.
std::string to_text(const RunResult& result);

}  // namespace precis::app
