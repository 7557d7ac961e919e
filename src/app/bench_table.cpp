#include "app/bench_table.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "eval/statistics.h"

namespace precis::app {
namespace {

using Json = nlohmann::ordered_json;

[[gnu::format(printf, 1, 2)]] std::string print(const char* format, ...) {
  char text[256];
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

std::string dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json break_even(const BenchRow& row) {
  if (row.break_even_prompt == SIZE_MAX) return "never";
  return or_null(row.break_even_prompt);
}

std::vector<double> nanoseconds(const BenchRow& row) {
  std::vector<double> out;
  for (const double s : row.seconds) out.push_back(std::round(s * 1e9));
  return out;
}

// Every column, in order.
Json to_object(const BenchRecord& record) {
  const BenchSetting& s = record.setting;
  const BenchRow& r = record.row;
  const std::vector<double> ns = nanoseconds(r);
  const std::vector<double> ts = r.speeds();
  Json o;
  o["build_commit"] = s.build_commit;
  o["cpu_info"] = s.cpu_info;
  o["backends"] = s.backends;
  o["model_filename"] = s.model_filename;
  o["model_type"] = s.model_type;
  o["model_size"] = s.model_size;
  o["model_n_params"] = s.model_n_params;
  o["n_threads"] = s.n_threads;
  o["type_k"] = r.type_k;
  o["type_v"] = r.type_v;
  o["n_prompt"] = r.n_prompt;
  o["n_gen"] = r.n_gen;
  o["n_depth"] = r.n_depth;
  o["test_time"] = s.test_time;
  o["avg_ns"] = static_cast<std::uint64_t>(mean_of(ns));
  o["stddev_ns"] = static_cast<std::uint64_t>(stddev_of(ns));
  o["avg_ts"] = mean_of(ts);
  o["stddev_ts"] = stddev_of(ts);
  o["version"] = s.version;
  o["weights"] = weights_mode_name(s.weights.mode);
  o["weights_added_bytes"] = s.weights.added_bytes();
  o["method"] = r.method;
  o["keep"] = r.keep;
  o["n_sessions"] = r.n_sessions;
  o["synthetic"] = r.synthetic;
  o["median_ts"] = median_of(ts);
  o["median_ratio"] = median_of(r.ratios);
  o["min_ratio"] = *std::min_element(r.ratios.begin(), r.ratios.end());
  o["max_ratio"] = *std::max_element(r.ratios.begin(), r.ratios.end());
  o["kv_bytes"] = r.kv_bytes;
  o["gb_per_s"] = or_null(r.gb_per_s);
  o["read_bandwidth_gb_s"] = or_null(r.read_bandwidth_gb_s);
  o["share_of_bandwidth"] = or_null(r.share_of_bandwidth);
  o["bound_share"] = or_null(r.bound_share);
  o["compress_ms"] = or_null(r.compress_ms);
  o["ttft_ms"] = or_null(r.ttft_ms);
  o["peak_bytes"] = or_null(r.peak_bytes);
  o["break_even_prompt"] = break_even(r);
  return o;
}

Json with_samples(const BenchRecord& record) {
  Json o = to_object(record);
  o["samples_ns"] = nanoseconds(record.row);
  o["samples_ts"] = record.row.speeds();
  return o;
}

// RFC 4180, every field quoted as llama-bench does.
std::string csv_field(const Json& value) {
  const std::string text = value.is_null()     ? ""
                           : value.is_string() ? value.get<std::string>()
                                               : dump(value);
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"') out += '"';
    out += c;
  }
  return out + '"';
}

std::string csv(const std::vector<Json>& objects) {
  std::string out;
  for (const auto& item : objects.front().items()) out += (out.empty() ? "" : ",") + item.key();
  out += '\n';
  for (const Json& object : objects) {
    std::string line;
    for (const auto& item : object.items())
      line += (line.empty() ? "" : ",") + csv_field(item.value());
    out += line + '\n';
  }
  return out;
}

std::string json_array(const std::vector<Json>& objects) {
  std::string out = "[\n";
  for (std::size_t i = 0; i < objects.size(); ++i)
    out += "  " + dump(objects[i]) + (i + 1 < objects.size() ? ",\n" : "\n");
  return out + "]\n";
}

std::string json_lines(const std::vector<Json>& objects) {
  std::string out;
  for (const Json& object : objects) out += dump(object) + '\n';
  return out;
}

// Characters on screen: continuation bytes of UTF-8 take no room.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

struct MarkdownColumn {
  std::string title;
  bool to_the_right = true;
  std::vector<std::string> cells;
};

std::string markdown(const std::vector<MarkdownColumn>& columns) {
  std::vector<std::size_t> widths;
  for (const MarkdownColumn& c : columns) {
    widths.push_back(width_of(c.title));
    for (const std::string& cell : c.cells) widths.back() = std::max(widths.back(), width_of(cell));
  }
  const auto line = [&](const auto& cell_of) {
    std::string out = "|";
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const std::string cell = cell_of(i);
      const std::string room(widths[i] - width_of(cell), ' ');
      out += ' ' + (columns[i].to_the_right ? room + cell : cell + room) + " |";
    }
    return out + '\n';
  };
  std::string out = line([&](std::size_t i) { return columns[i].title; });
  out += line([&](std::size_t i) {
    return std::string(widths[i] - 1, '-') + (columns[i].to_the_right ? ':' : '-');
  });
  for (std::size_t row = 0; row < columns.front().cells.size(); ++row)
    out += line([&](std::size_t i) { return columns[i].cells[row]; });
  return out;
}

std::string machine_line(const BenchSetting& s) {
  return concat("build: precis ", s.version, " (", s.build_commit, ") on ", s.cpu_info, ", ",
                s.n_threads, s.n_threads == 1 ? " thread" : " threads");
}

std::string percent(const std::optional<double>& share) {
  return share ? print("%.1f %%", 100 * *share) : "";
}

std::string bench_markdown(const std::vector<BenchRecord>& records) {
  std::vector<MarkdownColumn> columns;
  const auto add = [&](const char* title, bool to_the_right, const auto& cell_of) {
    MarkdownColumn column{title, to_the_right, {}};
    bool any = false;
    for (const BenchRecord& record : records) {
      column.cells.push_back(cell_of(record.setting, record.row));
      any = any || !column.cells.back().empty();
    }
    if (any) columns.push_back(std::move(column));  // a column without figures says nothing
  };
  using S = const BenchSetting&;
  using R = const BenchRow&;
  const bool plain = std::all_of(records.begin(), records.end(), [](const BenchRecord& record) {
    return record.row.type_k == "f16" && record.row.type_v == "f16" && record.row.n_sessions == 1;
  });
  add("model", false, [](S s, R) { return s.model_type; });
  add("size", true, [](S s, R) { return print_bytes(static_cast<double>(s.model_size)); });
  add("threads", true, [](S s, R) { return std::to_string(s.n_threads); });
  if (!plain) {
    add("type_k", true, [](S, R r) { return r.type_k; });
    add("type_v", true, [](S, R r) { return r.type_v; });
    add("batch", true, [](S, R r) { return std::to_string(r.n_sessions); });
  }
  add("method", false, [](S, R r) {
    std::string name = r.label;
    if (r.type_k != "f16" || r.type_v != "f16") name += ", " + r.type_k + "/" + r.type_v;
    if (r.n_sessions > 1) name += ", " + std::to_string(r.n_sessions) + " sessions";
    return name;
  });
  add("keep", true, [](S, R r) { return r.keep; });
  add("test", true, [](S, R r) { return r.test_name() + (r.synthetic ? " (s)" : ""); });
  add("t/s", true, [](S, R r) {
    return print("%.2f \xc2\xb1 %.2f", mean_of(r.speeds()), stddev_of(r.speeds()));
  });
  add("ratio", true, [](S, R r) { return print("%.3f", median_of(r.ratios)); });
  add("KV", true,
      [](S, R r) { return r.kv_bytes > 0 ? print_bytes(static_cast<double>(r.kv_bytes)) : ""; });
  add("GB/s", true, [](S, R r) { return r.gb_per_s ? print("%.2f", *r.gb_per_s) : ""; });
  add("of bandwidth", true, [](S, R r) { return percent(r.share_of_bandwidth); });
  add("of bound", true, [](S, R r) { return percent(r.bound_share); });
  add("compress ms", true,
      [](S, R r) { return r.compress_ms ? print("%.1f", *r.compress_ms) : ""; });
  add("ttft ms", true, [](S, R r) { return r.ttft_ms ? print("%.0f", *r.ttft_ms) : ""; });
  add("peak", true,
      [](S, R r) { return r.peak_bytes ? print_bytes(static_cast<double>(*r.peak_bytes)) : ""; });
  add("break-even", true, [](S, R r) -> std::string {
    if (!r.break_even_prompt) return "";
    return *r.break_even_prompt == SIZE_MAX ? "never" : std::to_string(*r.break_even_prompt);
  });
  std::string out = markdown(columns) + '\n';
  if (std::any_of(records.begin(), records.end(),
                  [](const BenchRecord& record) { return record.row.synthetic; }))
    out += "(s): the depth is filled with synthetic rows, not with a prompt that was read\n";
  std::vector<std::string> lines;
  for (const BenchRecord& record : records) {
    std::string line = machine_line(record.setting);
    if (record.row.read_bandwidth_gb_s)
      line += print("; they read memory at %.2f GB/s", *record.row.read_bandwidth_gb_s);
    if (std::find(lines.begin(), lines.end(), line) == lines.end()) lines.push_back(line);
  }
  for (const std::string& line : lines) out += line + '\n';
  return out;
}

Json point_object(const GrowthPoint& p, const BenchSetting& s) {
  Json o;
  o["build_commit"] = s.build_commit;
  o["cpu_info"] = s.cpu_info;
  o["model_filename"] = s.model_filename;
  o["n_threads"] = s.n_threads;
  o["series"] = p.series;
  o["n"] = p.n;
  o["unit"] = p.series == "memory" ? "bytes" : "ms";
  o["measured"] = p.measured;
  o["fitted"] = p.fitted;
  o["n_distinct_layers"] = p.n_distinct_layers;
  return o;
}

std::string series_line(const GrowthSeries& s) {
  const double worst = 100 * s.fit.worst_residual;
  if (s.name == "memory")
    return print("memory of a session: entries x row bytes, within %.1f %%\n", worst);
  if (s.name == "prefill") {
    return print("prefill: %.4g ms x n + %.4g ms x n^2, within %.1f %%; ", s.fit.linear,
                 s.fit.quadratic, worst) +
           print("the quadratic part of the longest prompt is %.1f %%\n",
                 100 * s.quadratic_share.value_or(0));
  }
  return print("%s: %.4g ms + %.4g ms x n, within %.1f %%\n", s.name.c_str(), s.fit.constant,
               s.fit.linear, worst);
}

std::string growth_markdown(const Growth& growth, const BenchSetting& setting) {
  std::vector<MarkdownColumn> columns = {
      {"series", false, {}}, {"n", true, {}},      {"measured", true, {}},
      {"fitted", true, {}},  {"off by", true, {}}, {"layers with own rows", true, {}}};
  for (const GrowthPoint& p : growth.points) {
    const auto value = [&](double v) {
      return p.series == "memory" ? print_bytes(v) : print("%.3f ms", v);
    };
    columns[0].cells.push_back(p.series);
    columns[1].cells.push_back(std::to_string(p.n));
    columns[2].cells.push_back(value(p.measured));
    columns[3].cells.push_back(p.fitted > 0 ? value(p.fitted) : "");
    columns[4].cells.push_back(
        p.fitted > 0 ? print("%+.1f %%", 100 * (p.measured - p.fitted) / p.fitted) : "");
    const bool decodes = p.series == "decode" || p.series == "memory";
    columns[5].cells.push_back(!decodes                   ? ""
                               : p.n_distinct_layers == 0 ? "all"
                                                          : std::to_string(p.n_distinct_layers));
  }
  std::string out = markdown(columns) + '\n';
  for (const GrowthSeries& series : growth.series) out += series_line(series);
  return out + setting.model_type + "; " + machine_line(setting) + '\n';
}

Json growth_object(const Growth& growth, const std::vector<Json>& points) {
  Json out;
  out["points"] = points;
  out["series"] = Json::array();
  for (const GrowthSeries& s : growth.series) {
    Json o;
    o["series"] = s.name;
    o["constant_ms"] = s.fit.constant;
    o["linear_ms"] = s.fit.linear;
    o["quadratic_ms"] = s.fit.quadratic;
    o["worst_residual"] = s.fit.worst_residual;
    o["quadratic_share"] = or_null(s.quadratic_share);
    out["series"].push_back(o);
  }
  return out;
}

}  // namespace

TableFormat parse_table_format(const std::string& name) {
  if (name == "md") return TableFormat::kMarkdown;
  if (name == "csv") return TableFormat::kCsv;
  if (name == "json") return TableFormat::kJson;
  if (name == "jsonl") return TableFormat::kJsonLines;
  throw Error(ErrorCode::kInvalidArgument, concat("unknown output format '", name.substr(0, 40),
                                                  "'; possible: md, csv, json, jsonl"));
}

std::string print_bench(const std::vector<BenchRecord>& records, TableFormat format) {
  PRECIS_CHECK(!records.empty());
  if (format == TableFormat::kMarkdown) return bench_markdown(records);
  std::vector<Json> objects;
  for (const BenchRecord& record : records)
    objects.push_back(format == TableFormat::kCsv ? to_object(record) : with_samples(record));
  if (format == TableFormat::kCsv) return csv(objects);
  return format == TableFormat::kJson ? json_array(objects) : json_lines(objects);
}

std::string print_growth(const Growth& growth, const BenchSetting& setting, TableFormat format) {
  if (format == TableFormat::kMarkdown) return growth_markdown(growth, setting);
  std::vector<Json> points;
  for (const GrowthPoint& point : growth.points) points.push_back(point_object(point, setting));
  PRECIS_CHECK(!points.empty());
  if (format == TableFormat::kCsv) return csv(points);
  if (format == TableFormat::kJsonLines) return json_lines(points);
  return dump(growth_object(growth, points)) + '\n';
}

std::string print_bytes(double bytes) {
  if (bytes >= 1 << 30) return print("%.2f GiB", bytes / (1 << 30));
  if (bytes >= 1 << 20) return print("%.2f MiB", bytes / (1 << 20));
  return print("%.1f KiB", bytes / (1 << 10));
}

std::string print_count(double n) {
  return n >= 1e9 ? print("%.2fB", n / 1e9) : print("%.2fM", n / 1e6);
}

}  // namespace precis::app
