#include "app/cache_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "report/number_text.h"
#include "store/report_json.h"

namespace precis::app {
namespace {

using Json = nlohmann::ordered_json;

// Texts come from the file: at most a line, no terminal sequences.
std::string shown(const std::string& text) { return shorten(text, 400); }

std::string size_text(std::size_t bytes) { return bytes_text(static_cast<double>(bytes)); }

std::string entries_text(const CacheSummary& s) {
  std::size_t fewest = SIZE_MAX;
  std::size_t most = 0;
  for (const std::vector<std::size_t>& layer : s.entries)
    for (const std::size_t n : layer) {
      fewest = std::min(fewest, n);
      most = std::max(most, n);
    }
  if (s.entries.empty()) return "no condensed layers";
  if (fewest == most) return concat(most, " entries a head");
  return concat(fewest, " to ", most, " entries a head");
}

Json cache_json(const CacheSummary& s, const std::string& path) {
  Json out;
  out["file"] = path;
  out["version"] = s.version;
  out["file_bytes"] = s.file_bytes;
  out["writer"] = s.meta.writer;
  out["model_sha256"] = s.model.sha256;
  out["architecture"] = s.model.arch;
  out["model_name"] = s.model.name;
  out["n_layers"] = s.model.n_layers;
  out["n_kv_heads"] = s.model.n_kv_heads;
  out["head_dim"] = s.model.head_dim;
  out["method"] = s.meta.report.method;
  out["keep"] = s.meta.report.keep;
  out["type_k"] = row_type_name(s.rows.keys);
  out["type_v"] = row_type_name(s.rows.values);
  out["n_condensed"] = s.n_read - s.n_tail;
  out["n_tail"] = s.n_tail;
  out["next_position"] = s.next_position;
  out["kv_bytes"] = s.kv_bytes;
  out["template"] = s.meta.use_template;
  out["document_bytes"] = s.meta.document.size();
  return out;
}

std::string line(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::string to_json(const CacheSummary& s, const std::string& path) {
  Json out = cache_json(s, path);
  out["seed"] = s.meta.seed;
  out["prefill_ms"] = s.meta.prefill_ms;
  out["compress_ms"] = s.meta.compress_ms;
  out["entries_per_layer_head"] = s.entries;
  out["report"] = Json::parse(report_json(s.meta.report));
  return line(out);
}

std::string to_text(const CacheSummary& s, const std::string& path) {
  const ModelFingerprint& m = s.model;
  std::string out =
      concat("file        ", shown(path), ": ", size_text(s.file_bytes), ", version ", s.version,
             " of the format, written by ", shown(s.meta.writer), "\nmodel       ", shown(m.arch));
  if (!m.name.empty()) out += concat(" '", shown(m.name), "'");
  out += concat(", ", m.n_layers, " layers, ", m.n_kv_heads, " KV heads of ", m.head_dim,
                " channels\n            sha256 ", m.sha256, "\nmethod      ",
                shown(s.meta.report.method), "\nkeep        ", shown(s.meta.report.keep), ", seed ",
                s.meta.seed, "\nprompt      ", s.n_read - s.n_tail, " tokens condensed, then ",
                s.n_tail, " read; next position ", s.next_position, "\n");
  if (s.meta.report.skipped) out += concat("skipped     ", shown(*s.meta.report.skipped), "\n");
  out += concat(
      "KV cache    ", size_text(s.kv_bytes), ", ", entries_text(s), ", keys ",
      row_type_name(s.rows.keys), ", values ", row_type_name(s.rows.values), "\ndocument    ",
      s.meta.document.size(), " bytes, ",
      s.meta.use_template ? "in the model's chat template, if it has one" : "without chat template",
      "\nmade in     ", fixed_text(s.meta.prefill_ms, 0), " ms of prefill, ",
      fixed_text(s.meta.compress_ms, 0), " ms of compression\n");
  return out;
}

std::string to_json(const CacheAnswer& a, const CacheSummary& s, const std::string& path) {
  Json out;
  out["answer"] = a.generation.text;
  out.update(cache_json(s, path));
  out["n_question"] = a.n_question;
  out["n_answer"] = a.generation.tokens.size();
  out["next_position"] = a.next_position;
  out["kv_bytes_end"] = a.kv_bytes_end;
  out["load_ms"] = a.load_ms;
  out["question_ms"] = a.question_ms;
  out["decode_tokens_per_s"] = a.generation.tokens_per_second();
  out["peak_bytes"] = a.peak_bytes;
  out["seed"] = a.seed;
  out["threads"] = a.threads;
  return line(out);
}

std::string to_text(const CacheAnswer& a, const CacheSummary& s, const std::string& path) {
  return concat("cache       ", shown(path), ": ", s.n_read, " tokens, ",
                shown(s.meta.report.method), " at ", shown(s.meta.report.keep), ", loaded in ",
                fixed_text(a.load_ms, 0), " ms\nKV cache    ", size_text(s.kv_bytes), ", ",
                size_text(a.kv_bytes_end), " with question and answer\nquestion    ", a.n_question,
                " tokens in ", fixed_text(a.question_ms, 0), " ms; next position ", a.next_position,
                "\ndecode      ", fixed_text(a.generation.tokens_per_second(), 1), " tokens/s (",
                a.generation.tokens.size(), " tokens)\nmemory      ", size_text(a.peak_bytes),
                " at the peak\n");
}

}  // namespace precis::app
