// Rows of every kind with every field set, for tests of what reads them.
#pragma once

#include <string>

#include "report/result_row.h"

namespace precis::test {

inline RowKey some_key() {
  RowKey key;
  key.suite = "ruler";
  key.task = "niah_single_1";
  key.length = 4096;
  key.index = 3;
  key.question = 1;
  key.query = "agnostic";
  key.label = "selkv";
  key.method = "selkv(alpha=0.5)";
  key.keep = "25%";
  key.type_k = "f16";
  key.type_v = "q8_0";
  return key;
}

inline RunRow some_run() {
  RunRow run;
  run.suite = "ruler";
  run.version = "0.1.0";
  run.commit = "0123456789";
  run.model = "small.gguf";
  run.model_sha256 = std::string(64, 'a');
  run.model_type = "llama 135M Q4_1";
  run.seed = 42;
  run.threads = 2;
  run.left_out = {"qa_1: no file is given"};
  run.settings = {{"method", {"full", "selkv(alpha=0.5)"}}, {"keep", {"25%"}}, {"dry", {}}};
  run.input_sha256 = {{"squad.json", std::string(64, 'b')}};
  return run;
}

inline ScoreRow some_score() {
  ScoreRow row;
  row.key = some_key();
  row.origin = {"0.1.0", std::string(64, 'd'), 18446744073709551615u};
  row.used_template = true;
  row.metric = "contain_all";
  row.score = 0.1 + 0.2;  // needs all 17 digits
  row.exact = true;
  row.chance = 0.25;
  row.n_context = 4000;
  row.n_question = 20;
  row.n_answer = 7;
  row.ended = true;
  row.n_truncated = 5;
  row.kv_bytes = 1000;
  row.kv_bytes_full = 4000;
  row.n_entries = 900;
  row.prompt_sha256 = std::string(64, 'c');
  row.answer = "4 \xC3\xA9t\xC3\xA9s \xF0\x9F\x98\x80 \"quoted\"\n\\ \x01";
  row.references = {"4", "\xE5\x9B\x9B"};
  return row;
}

inline FidelityRow some_fidelity() {
  FidelityRow row;
  row.key = some_key();
  row.origin = {"0.1.0", std::string(64, 'd'), 18446744073709551615u};
  row.key.suite = "fidelity";
  row.n_context = 4000;
  row.n_continuation = 256;
  row.kv_bytes = 1000;
  row.kv_bytes_full = 4000;
  row.n_entries = 900;
  row.mean_kl = 0.02;
  row.median_kl = 5e-324;
  row.p99_kl = 0.3;
  row.same_top = 0.95;
  row.log_likelihood = -2.5;
  row.log_likelihood_full = -2.25;
  row.output_error = {{0.1, 0.2}, {0.3, 1.0 / 3}};
  return row;
}

inline KeptRow some_kept() {
  KeptRow row;
  row.key = some_key();
  row.n_tokens = 4000;
  row.n_layers = 2;
  row.n_heads = 1;
  row.n_bins = 3;
  row.kept = {1, 0.25, 0.5, 1, 0, 0.125};
  row.merged = {0, 3.5, 0.5, 0, 0, 12};
  row.bias = {0, 0.7, 0.1, 0, 0, -1};
  row.residual = {0.25, 0};
  row.words = {"One day", "<b>&", "\xE5\x9B\x9B"};
  return row;
}

inline TimingRow some_timing() {
  TimingRow row;
  row.key = some_key();
  row.prefill_ms = 1234.5;
  row.compress_ms = 67.25;
  row.question_ms = 8;
  row.decode_ms = 90.125;
  row.n_decoded = 7;
  row.peak_bytes = 1u << 30;
  return row;
}

}  // namespace precis::test
