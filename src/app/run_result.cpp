#include "app/run_result.h"

#include <cstdarg>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace precis::app {
namespace {

double mebibytes(std::size_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

double percent(std::size_t part, std::size_t whole) {
  return whole == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

[[gnu::format(printf, 2, 3)]] void append_line(std::string& out, const char* format, ...) {
  char line[512];
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  out += line;
  out += '\n';
}

// Layers whose keys did not bear the type asked for.
std::size_t n_finer_layers(const RunResult& r) {
  std::size_t n = 0;
  for (const RowType type : r.report.key_types) n += type != r.rows.keys ? 1 : 0;
  return n;
}

nlohmann::ordered_json to_json(const MatmulReport& report) {
  nlohmann::ordered_json kinds = nlohmann::ordered_json::array();
  for (const MatmulKind& kind : report.kinds) {
    nlohmann::ordered_json one = {{"type", kind.type}, {"n_in", kind.n_in}, {"n_out", kind.n_out}};
    // null: ggml's product for every batch.
    if (kind.min_tokens == kNeverTokens)
      one["sgemm_from_tokens"] = nullptr;
    else
      one["sgemm_from_tokens"] = kind.min_tokens;
    kinds.push_back(std::move(one));
  }
  return {{"mode", matmul_mode_name(report.mode)},
          {"measuring_ms", report.measuring_ms},
          {"kinds", std::move(kinds)}};
}

nlohmann::ordered_json to_json(const WeightsReport& report) {
  nlohmann::ordered_json forms = nlohmann::ordered_json::array();
  for (const WeightForm& form : report.forms) {
    nlohmann::ordered_json one = {{"type", form.type},
                                  {"converted", form.is_converted},
                                  {"to", form.converted},
                                  {"n_matrices", form.n_matrices},
                                  {"file_bytes", form.file_bytes},
                                  {"converted_bytes", form.converted_bytes}};
    if (form.speedup == 0)
      one["speedup"] = nullptr;
    else
      one["speedup"] = form.speedup;
    forms.push_back(std::move(one));
  }
  return {{"mode", weights_mode_name(report.mode)},
          {"measuring_ms", report.measuring_ms},
          {"added_bytes", report.added_bytes()},
          {"forms", std::move(forms)}};
}

// Means over the heads of all layers.
struct ResidualSums {
  std::size_t n_heads = 0;
  std::size_t n_taking = 0;  // heads with residual entries
  std::size_t n_entries = 0;
  double error_before = 0;
  double error_after = 0;
  // Of the heads that take some.
  double evicted_mass = 0;
  double restored_mass = 0;
  double gate_factor = 0;
};

ResidualSums sum_residuals(const CompressionReport& report) {
  ResidualSums out;
  for (const std::vector<ResidualReport>& layer : report.residuals)
    for (const ResidualReport& head : layer) {
      ++out.n_heads;
      out.error_before += head.error_before;
      out.error_after += head.error_after;
      if (head.n_entries == 0) continue;
      ++out.n_taking;
      out.n_entries += head.n_entries;
      out.evicted_mass += head.evicted_mass;
      out.restored_mass += head.restored_mass;
      out.gate_factor += head.gate_factor;
    }
  const auto n_heads = static_cast<double>(std::max<std::size_t>(out.n_heads, 1));
  const auto n_taking = static_cast<double>(std::max<std::size_t>(out.n_taking, 1));
  for (double* sum : {&out.error_before, &out.error_after}) *sum /= n_heads;
  for (double* sum : {&out.evicted_mass, &out.restored_mass, &out.gate_factor}) *sum /= n_taking;
  return out;
}

GateTally sum_gates(const RunResult& r) {
  GateTally out;
  for (const std::vector<GateTally>& layer : r.gates)
    for (const GateTally& head : layer) out += head;
  return out;
}

// Of the queries that came after condensing.
nlohmann::ordered_json gate_json(const GateTally& tally) {
  return {{"n_queries", tally.n_rows},
          {"n_open", tally.n_open},
          {"n_closed", tally.n_closed},
          {"mean_factor", tally.mean_factor()}};
}

// null: the method has no residual stage.
nlohmann::ordered_json residual_json(const RunResult& r) {
  const CompressionReport& report = r.report;
  if (report.residual_skipped) return {{"skipped", *report.residual_skipped}};
  if (report.residuals.empty()) return nullptr;
  const ResidualSums sums = sum_residuals(report);
  nlohmann::ordered_json layers = nlohmann::ordered_json::array();
  for (std::size_t l = 0; l < report.residuals.size(); ++l) {
    layers.push_back(nlohmann::ordered_json::array());
    for (std::size_t h = 0; h < report.residuals[l].size(); ++h) {
      const ResidualReport& head = report.residuals[l][h];
      layers.back().push_back({{"entries", head.n_entries},
                               {"error_before", head.error_before},
                               {"error_after", head.error_after},
                               {"evicted_mass", head.evicted_mass},
                               {"restored_mass", head.restored_mass},
                               {"gate_factor", head.gate_factor},
                               {"gate", {head.gate.low, head.gate.high, head.gate.least}},
                               {"decode_gate", gate_json(r.gates[l][h])}});
    }
  }
  return {{"n_heads", sums.n_heads},
          {"n_heads_taking", sums.n_taking},
          {"n_entries", sums.n_entries},
          {"error_before", sums.error_before},
          {"error_after", sums.error_after},
          {"decode_gate", gate_json(sum_gates(r))},
          {"per_layer_head", std::move(layers)}};
}

void append_residual(const RunResult& r, std::string& out) {
  const CompressionReport& report = r.report;
  if (report.residual_skipped)
    append_line(out, "residual    none: %s", report.residual_skipped->c_str());
  if (report.residuals.empty()) return;
  const ResidualSums sums = sum_residuals(report);
  append_line(out,
              "residual    %zu entries in %zu of %zu heads; held-out error %.4f -> %.4f, %.0f ms",
              sums.n_entries, sums.n_taking, sums.n_heads, sums.error_before, sums.error_after,
              report.residual_ms);
  if (sums.n_taking == 0) return;
  append_line(
      out, "            there %.1f %% of attention is evicted, the entries get %.1f %%; gate %.2f",
      100 * sums.evicted_mass, 100 * sums.restored_mass, sums.gate_factor);
  const GateTally gates = sum_gates(r);
  if (gates.n_rows > 0) {
    const double n = static_cast<double>(gates.n_rows);
    append_line(
        out, "            gate in the answer: %.2f; open for %.1f %% of queries, shut for %.1f %%",
        gates.mean_factor(), 100 * static_cast<double>(gates.n_open) / n,
        100 * static_cast<double>(gates.n_closed) / n);
  }
  std::string layers;
  for (const std::vector<ResidualReport>& layer : report.residuals) {
    std::size_t n = 0;
    for (const ResidualReport& head : layer) n += head.n_entries;
    layers += " " + std::to_string(n);
  }
  append_line(out, "            by layer:%.400s", layers.c_str());
}

}  // namespace

std::string to_json(const RunResult& r) {
  nlohmann::ordered_json out;
  out["answer"] = r.answer;
  out["method"] = r.report.method;
  out["keep"] = r.report.keep;
  out["type_k"] = row_type_name(r.rows.keys);
  out["type_v"] = row_type_name(r.rows.values);
  std::vector<std::string> key_types;
  for (const RowType type : r.report.key_types) key_types.emplace_back(row_type_name(type));
  out["key_types"] = key_types;
  out["key_errors"] = r.report.key_errors;
  out["n_prompt"] = r.n_condensed + r.n_question;
  out["n_condensed"] = r.n_condensed;
  out["n_question"] = r.n_question;
  out["n_answer"] = r.n_answer;
  out["next_position"] = r.next_position;
  out["kv_bytes_full"] = r.kv_bytes_full;
  out["kv_bytes"] = r.kv_bytes;
  out["kv_bytes_end"] = r.kv_bytes_end;
  out["entries_per_layer_head"] = r.report.entries;
  out["n_routed"] = r.report.n_routed;
  out["n_dropped"] = r.report.n_dropped;
  out["n_floored"] = r.report.n_floored;
  out["residual"] = residual_json(r);
  out["prefill_ms"] = r.prefill_ms;
  out["compress_ms"] = r.compress_ms;
  out["compress_stages_ms"] = {{"score", r.report.score_ms},
                               {"select", r.report.select_ms},
                               {"merge", r.report.merge_ms},
                               {"residual", r.report.residual_ms},
                               {"freeze", r.report.freeze_ms}};
  out["question_ms"] = r.question_ms;
  out["decode_tokens_per_s"] = r.decode_tokens_per_s;
  out["loaded_bytes"] = r.loaded_bytes;
  out["peak_bytes"] = r.peak_bytes;
  if (r.report.skipped)
    out["skipped"] = *r.report.skipped;
  else
    out["skipped"] = nullptr;
  out["seed"] = r.seed;
  out["threads"] = r.threads;
  out["matmul"] = to_json(r.matmul);
  out["weights"] = to_json(r.weights);
  out["model_sha256"] = r.model_sha256;
  if (r.full) {
    out["full"] = {{"answer", r.full->answer},
                   {"kv_bytes", r.full->kv_bytes},
                   {"prefill_ms", r.full->prefill_ms},
                   {"n_continuation", r.full->n_continuation},
                   {"mean_kl", r.full->mean_kl},
                   {"max_kl", r.full->max_kl},
                   {"same_top", r.full->same_top},
                   {"full_token_ms", r.full->full_token_ms},
                   {"condensed_token_ms", r.full->condensed_token_ms}};
  }
  return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string to_text(const RunResult& r) {
  std::string out;
  append_line(out, "method      %s", r.report.method.c_str());
  append_line(out, "prompt      %zu tokens condensed, then %zu of the question; next position %zu",
              r.n_condensed, r.n_question, r.next_position);
  if (r.report.skipped) append_line(out, "skipped     %s", r.report.skipped->c_str());
  append_line(out, "KV cache    %.1f MiB -> %.1f MiB (%.1f %% kept, %.1f %% removed)",
              mebibytes(r.kv_bytes_full), mebibytes(r.kv_bytes),
              percent(r.kv_bytes, r.kv_bytes_full), 100.0 - percent(r.kv_bytes, r.kv_bytes_full));
  if (!(r.rows == RowTypes{}))
    append_line(out, "row types   keys %s, values %s; %zu of %zu layers needed finer keys",
                row_type_name(r.rows.keys), row_type_name(r.rows.values), n_finer_layers(r),
                r.report.key_types.size());
  append_residual(r, out);
  append_line(out,
              "prefill     %.0f ms (%.0f tokens/s), compression %.0f ms (%.1f %% of the prefill)",
              r.prefill_ms, 1000.0 * static_cast<double>(r.n_condensed) / r.prefill_ms,
              r.compress_ms, 100.0 * r.compress_ms / r.prefill_ms);
  append_line(out, "decode      %.1f tokens/s (%zu tokens)", r.decode_tokens_per_s, r.n_answer);
  append_line(out, "memory      %.1f MiB at the peak, %.1f MiB of it over the loaded model",
              mebibytes(r.peak_bytes),
              mebibytes(r.peak_bytes - std::min(r.peak_bytes, r.loaded_bytes)));
  for (const WeightForm& form : r.weights.forms) {
    if (!form.is_converted) continue;
    append_line(out,
                "weights     %zu matrices of %s multiplied as %s: the same numbers, %.1f MiB more",
                form.n_matrices, form.type.c_str(), form.converted.c_str(),
                mebibytes(form.converted_bytes - form.file_bytes));
  }
  if (!r.full) return out;
  const FullCacheComparison& f = *r.full;
  append_line(out,
              "against the full cache, decoding the same %zu tokens in turns:", f.n_continuation);
  append_line(out, "  speed     %.2f ms a token, full %.2f ms: %.2f times as fast",
              f.condensed_token_ms, f.full_token_ms, f.full_token_ms / f.condensed_token_ms);
  append_line(out, "  KL        %.4f nats a token on average, %.4f at most; same top token %.1f %%",
              f.mean_kl, f.max_kl, 100.0 * f.same_top);
  return out;
}

}  // namespace precis::app
