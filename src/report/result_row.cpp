#include "report/result_row.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace precis {
namespace {

using Json = nlohmann::ordered_json;

// What one line may hold, so that no line costs more than its length promises: objects keep the
// order of their fields and are searched one by one.
constexpr std::size_t kMostCells = std::size_t{1} << 24;
constexpr std::size_t kMostFields = 10000;
constexpr std::size_t kMostDepth = 32;
constexpr std::size_t kMostTokens = std::size_t{1} << 36;
// Sums of such numbers are still finite.
constexpr double kLargest = 1e100;
constexpr std::uint64_t kLargestInt = 1000000;
constexpr int kFormatNow = 1;
// Rounding in a metric.
constexpr double kSlack = 1e-9;

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorCode::kFormat, what); }

// One function per kind lists its fields; this visitor writes them.
class Writer {
 public:
  explicit Writer(Json& to) : to_(to) {}
  template <class T>
  void operator()(const char* name, const T& field) {
    to_[name] = field;
  }
  void operator()(const char* name, const std::optional<double>& field) {
    to_[name] = field ? Json(*field) : Json(nullptr);
  }
  void operator()(const char* name, const RunRow::Lists& field) {
    Json out = Json::object();
    for (const auto& [key, values] : field) out[key] = values;
    to_[name] = std::move(out);
  }
  void operator()(const char* name, const RunRow::Texts& field) {
    Json out = Json::object();
    for (const auto& [key, value] : field) out[key] = value;
    to_[name] = std::move(out);
  }

 private:
  Json& to_;
};

// And this one reads them.
class Reader {
 public:
  explicit Reader(const Json& from) : from_(from) {}
  void operator()(const char* name, std::string& field) { field = text(name, find(name)); }
  void operator()(const char* name, bool& field) {
    const Json& value = find(name);
    if (!value.is_boolean()) wrong(name, "true or false");
    field = value.get<bool>();
  }
  void operator()(const char* name, double& field) { field = number(name, find(name)); }
  void operator()(const char* name, std::optional<double>& field) {
    const Json& value = find(name);
    field.reset();
    if (!value.is_null()) field = number(name, value);
  }
  void operator()(const char* name, int& field) {
    const Json& value = find(name);
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > kLargestInt)
      wrong(name, "a whole number from 0 to 1000000");
    field = value.get<int>();
  }
  void operator()(const char* name, std::size_t& field) {
    const Json& value = find(name);
    if (!value.is_number_unsigned()) wrong(name, "a whole number of 0 or more");
    field = value.get<std::size_t>();
  }
  void operator()(const char* name, std::vector<std::string>& field) {
    field = texts(name, find(name));
  }
  void operator()(const char* name, std::vector<double>& field) {
    field.clear();
    for (const Json& value : list(name, find(name))) field.push_back(number(name, value));
  }
  void operator()(const char* name, std::vector<std::vector<double>>& field) {
    field.clear();
    for (const Json& row : list(name, find(name))) {
      field.emplace_back();
      for (const Json& value : list(name, row)) field.back().push_back(number(name, value));
    }
  }
  void operator()(const char* name, RunRow::Lists& field) {
    field.clear();
    for (const auto& [key, values] : object(name).items())
      field.emplace_back(key, texts(name, values));
  }
  void operator()(const char* name, RunRow::Texts& field) {
    field.clear();
    for (const auto& [key, value] : object(name).items())
      field.emplace_back(key, text(name, value));
  }

 private:
  [[noreturn]] static void wrong(const char* name, const char* wanted) {
    refuse(concat("field '", name, "' is not ", wanted));
  }
  const Json& find(const char* name) const {
    const auto found = from_.find(name);
    if (found == from_.end()) refuse(concat("field '", name, "' is missing"));
    return *found;
  }
  const Json& object(const char* name) const {
    const Json& value = find(name);
    if (!value.is_object()) wrong(name, "an object");
    return value;
  }
  static const Json& list(const char* name, const Json& value) {
    if (!value.is_array()) wrong(name, "a list");
    if (value.size() > kMostCells)
      refuse(concat("field '", name, "' has ", value.size(), " items, at most ", kMostCells,
                    " are read"));
    return value;
  }
  static double number(const char* name, const Json& value) {
    if (!value.is_number()) wrong(name, "a number");
    const double number = value.get<double>();
    if (!std::isfinite(number) || std::abs(number) > kLargest)
      wrong(name, "between -1e100 and 1e100");
    return number;
  }
  static std::string text(const char* name, const Json& value) {
    if (!value.is_string()) wrong(name, "a text");
    return value.get<std::string>();
  }
  static std::vector<std::string> texts(const char* name, const Json& value) {
    std::vector<std::string> out;
    for (const Json& item : list(name, value)) out.push_back(text(name, item));
    return out;
  }

  const Json& from_;
};

template <class V, class Key>
void key_fields(V& v, Key& k) {
  v("suite", k.suite);
  v("task", k.task);
  v("length", k.length);
  v("index", k.index);
  v("question", k.question);
  v("query", k.query);
  v("label", k.label);
  v("method", k.method);
  v("keep", k.keep);
  v("type_k", k.type_k);
  v("type_v", k.type_v);
}

template <class V, class Origin>
void origin_fields(V& v, Origin& o) {
  v("version", o.version);
  v("model_sha256", o.model_sha256);
  v("seed", o.seed);
}

// The fields of each kind; R is the row or the row as const.
template <class R>
constexpr const char* kKind = "";
template <>
constexpr const char* kKind<RunRow> = "run";
template <>
constexpr const char* kKind<ScoreRow> = "score";
template <>
constexpr const char* kKind<FidelityRow> = "fidelity";
template <>
constexpr const char* kKind<KeptRow> = "kept";
template <>
constexpr const char* kKind<TimingRow> = "timing";

template <class V, class R>
void fields(V& v, R& r) requires std::is_same_v<std::remove_const_t<R>, RunRow> {
  v("format", r.format);
  v("suite", r.suite);
  v("version", r.version);
  v("commit", r.commit);
  v("model", r.model);
  v("model_sha256", r.model_sha256);
  v("model_type", r.model_type);
  v("seed", r.seed);
  v("threads", r.threads);
  v("shard", r.shard);
  v("n_shards", r.n_shards);
  v("left_out", r.left_out);
  v("settings", r.settings);
  v("input_sha256", r.input_sha256);
}

template <class V, class R>
void fields(V& v, R& r) requires std::is_same_v<std::remove_const_t<R>, ScoreRow> {
  key_fields(v, r.key);
  origin_fields(v, r.origin);
  v("used_template", r.used_template);
  v("metric", r.metric);
  v("score", r.score);
  v("exact", r.exact);
  v("chance", r.chance);
  v("n_context", r.n_context);
  v("n_question", r.n_question);
  v("n_answer", r.n_answer);
  v("ended", r.ended);
  v("n_truncated", r.n_truncated);
  v("kv_bytes", r.kv_bytes);
  v("kv_bytes_full", r.kv_bytes_full);
  v("n_entries", r.n_entries);
  v("prompt_sha256", r.prompt_sha256);
  v("answer", r.answer);
  v("references", r.references);
}

template <class V, class R>
void fields(V& v, R& r) requires std::is_same_v<std::remove_const_t<R>, FidelityRow> {
  key_fields(v, r.key);
  origin_fields(v, r.origin);
  v("n_context", r.n_context);
  v("n_continuation", r.n_continuation);
  v("kv_bytes", r.kv_bytes);
  v("kv_bytes_full", r.kv_bytes_full);
  v("n_entries", r.n_entries);
  v("mean_kl", r.mean_kl);
  v("median_kl", r.median_kl);
  v("p99_kl", r.p99_kl);
  v("same_top", r.same_top);
  v("log_likelihood", r.log_likelihood);
  v("log_likelihood_full", r.log_likelihood_full);
  v("output_error", r.output_error);
}

template <class V, class R>
void fields(V& v, R& r) requires std::is_same_v<std::remove_const_t<R>, KeptRow> {
  key_fields(v, r.key);
  v("n_tokens", r.n_tokens);
  v("n_layers", r.n_layers);
  v("n_heads", r.n_heads);
  v("n_bins", r.n_bins);
  v("kept", r.kept);
  v("merged", r.merged);
  v("bias", r.bias);
  v("residual", r.residual);
  v("words", r.words);
}

template <class V, class R>
void fields(V& v, R& r) requires std::is_same_v<std::remove_const_t<R>, TimingRow> {
  key_fields(v, r.key);
  v("prefill_ms", r.prefill_ms);
  v("compress_ms", r.compress_ms);
  v("question_ms", r.question_ms);
  v("decode_ms", r.decode_ms);
  v("n_decoded", r.n_decoded);
  v("peak_bytes", r.peak_bytes);
}

void check_size(const char* name, std::size_t size, std::size_t wanted, bool may_be_empty) {
  if (size == wanted || (may_be_empty && size == 0)) return;
  refuse(concat("field '", name, "' has ", size, " items, its sizes ask for ", wanted));
}

void check_cells(const KeptRow& r) {
  for (const std::size_t n : {r.n_layers, r.n_heads, r.n_bins})
    if (n == 0 || n > kMostCells) refuse(concat("a size of ", n, " is outside 1 to ", kMostCells));
  if (r.n_layers * r.n_heads > kMostCells || r.n_layers * r.n_heads * r.n_bins > kMostCells)
    refuse(concat(r.n_layers, " layers of ", r.n_heads, " heads and ", r.n_bins,
                  " bins are more than ", kMostCells, " cells"));
  // Positions of bins are computed as bin * n_tokens.
  if (r.n_tokens > kMostTokens)
    refuse(concat("field 'n_tokens' is ", r.n_tokens, ", at most ", kMostTokens, " are read"));
  const std::size_t n = r.n_layers * r.n_heads * r.n_bins;
  check_size("kept", r.kept.size(), n, false);
  check_size("merged", r.merged.size(), n, true);
  check_size("bias", r.bias.size(), n, true);
  check_size("residual", r.residual.size(), r.n_layers * r.n_heads, true);
  check_size("words", r.words.size(), r.n_bins, true);
}

void check_share(const char* name, double value) {
  if (value < -kSlack || value > 1 + kSlack)
    refuse(concat("field '", name, "' is ", value, ", outside 0 to 1"));
}

void check(const RunRow& r) {
  if (r.format != kFormatNow)
    refuse(concat("field 'format' is ", r.format, ", this version reads ", kFormatNow));
  if (r.shard < 1 || r.shard > r.n_shards)
    refuse(concat("field 'shard' is ", r.shard, ", outside 1 to n_shards = ", r.n_shards));
}

void check(const ScoreRow& r) {
  check_share("score", r.score);
  if (r.chance) check_share("chance", *r.chance);
}

void check(const FidelityRow& r) { check_share("same_top", r.same_top); }

void check(const KeptRow& r) {
  check_cells(r);
  for (const double value : r.kept) check_share("kept", value);
}

void check(const TimingRow&) {}

// One pass before anything is built: how deep, how many fields, how many items.
void check_extent(std::string_view line) {
  std::size_t depth = 0;
  std::size_t n_fields = 0;
  std::size_t n_items = 0;
  bool in_text = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (in_text) {
      if (c == '\\') ++i;
      if (c == '"') in_text = false;
      continue;
    }
    if (c == '"') in_text = true;
    if (c == '[' || c == '{') ++depth;
    if ((c == ']' || c == '}') && depth > 0) --depth;
    if (c == ':') ++n_fields;
    if (c == ',') ++n_items;
    if (depth > kMostDepth) refuse(concat("nested deeper than ", kMostDepth, ", at byte ", i + 1));
  }
  if (n_fields > kMostFields) refuse(concat(n_fields, " fields, at most ", kMostFields));
  if (n_items > kMostCells) refuse(concat(n_items, " items, at most ", kMostCells));
}

template <class R>
ResultRow read(const Json& object) {
  R row;
  Reader reader(object);
  fields(reader, row);
  check(row);
  return row;
}

}  // namespace

std::string print_row(const ResultRow& row) {
  Json out;
  std::visit(
      [&out](const auto& r) {
        out["kind"] = kKind<std::remove_cvref_t<decltype(r)>>;
        Writer writer(out);
        fields(writer, r);
      },
      row);
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

ResultRow parse_row(std::string_view line) {
  check_extent(line);
  Json object;
  try {
    object = Json::parse(line);
  } catch (const Json::parse_error& e) {
    refuse(concat("not JSON, at byte ", e.byte));
  } catch (const Json::exception&) {
    refuse("a number is too large");
  }
  if (!object.is_object()) refuse("not a JSON object");
  const auto kind = object.find("kind");
  if (kind == object.end()) refuse("field 'kind' is missing");
  if (!kind->is_string()) refuse("field 'kind' is not a text");
  const auto& name = kind->get_ref<const std::string&>();
  if (name == "run") return read<RunRow>(object);
  if (name == "score") return read<ScoreRow>(object);
  if (name == "fidelity") return read<FidelityRow>(object);
  if (name == "kept") return read<KeptRow>(object);
  if (name == "timing") return read<TimingRow>(object);
  refuse(concat("unknown kind '", name, "'; known: run, score, fidelity, kept, timing"));
}

UnitKey unit_of(const RowKey& key) { return {key.suite, key.task, key.length, key.index}; }

const RowKey* key_of(const ResultRow& row) {
  return std::visit(
      [](const auto& r) -> const RowKey* {
        if constexpr (std::is_same_v<std::remove_cvref_t<decltype(r)>, RunRow>)
          return nullptr;
        else
          return &r.key;
      },
      row);
}

}  // namespace precis
