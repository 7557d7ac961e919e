// One layer in a file: what the condenser gets, for tools/selkv_reference.py. The format is
// described at the top of that file. Only for tests: the header is read by looking for its keys.
#pragma once

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/fields.h"
#include "cache/kv_rows.h"
#include "compress/condenser.h"
#include "compress/stage.h"

namespace precis::test {

inline void write_bytes(std::ostream& out, const void* data, std::size_t bytes) {
  out.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
}

// Writes keys, values and queries of one layer. `observed` holds the last observed.n_tokens
// queries.
inline void write_layer_dump(const std::string& path, const TailRows& dense,
                             const ObservedQueries& observed, const LayerShape& shape) {
  std::ofstream out(path, std::ios::binary);
  const std::size_t width = shape.kv.head_dim;
  out << "{\"format\": \"precis-layer\", \"version\": 1, \"n_kv_heads\": " << shape.kv.n_kv_heads
      << ", \"n_heads\": " << shape.kv.n_kv_heads * shape.group
      << ", \"n_tokens\": " << dense.size() << ", \"n_queries\": " << observed.n_tokens
      << ", \"head_dim\": " << width
      << ", \"scale\": " << print_number(static_cast<double>(shape.rule.scale))
      << ", \"softcap\": " << print_number(static_cast<double>(shape.rule.softcap)) << "}\n";
  const std::size_t rows = dense.size() * width * sizeof(Half);
  for (std::size_t h = 0; h < shape.kv.n_kv_heads; ++h) write_bytes(out, dense.head(h).keys, rows);
  for (std::size_t h = 0; h < shape.kv.n_kv_heads; ++h)
    write_bytes(out, dense.head(h).values, rows);
  write_bytes(out, observed.queries.data(), observed.queries.size() * sizeof(float));
  write_bytes(out, observed.log_sum_exp.data(), observed.log_sum_exp.size() * sizeof(float));
  out.flush();
  if (!out) throw Error(ErrorCode::kIo, concat("cannot write ", path));
}

struct LayerDump {
  LayerShape shape;
  TailRows dense;
  ObservedQueries observed;
};

// Reads what write_layer_dump or selkv_reference.py wrote.
inline LayerDump read_layer_dump(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string header;
  if (!std::getline(in, header)) throw Error(ErrorCode::kIo, concat("cannot read ", path));
  const auto number = [&](const std::string& key) {
    const std::size_t at = header.find('"' + key + "\":");
    if (at == std::string::npos) throw Error(ErrorCode::kFormat, concat(path, ": no ", key));
    return std::strtod(header.c_str() + at + key.size() + 3, nullptr);
  };
  const auto count = [&](const std::string& key) { return static_cast<std::size_t>(number(key)); };
  LayerDump dump;
  const std::size_t n_heads = count("n_heads");
  dump.shape.kv = {count("n_kv_heads"), count("head_dim")};
  dump.shape.group = n_heads / dump.shape.kv.n_kv_heads;
  dump.shape.rule = {static_cast<float>(number("scale")), static_cast<float>(number("softcap"))};
  dump.dense = TailRows(dump.shape.kv);
  dump.dense.grow(count("n_tokens"));
  const auto read = [&](void* into, std::size_t bytes) {
    in.read(static_cast<char*>(into), static_cast<std::streamsize>(bytes));
    if (!in) throw Error(ErrorCode::kFormat, concat(path, ": the file ends early"));
  };
  const std::size_t rows = dump.dense.size() * dump.shape.kv.head_dim * sizeof(Half);
  for (std::size_t h = 0; h < dump.shape.kv.n_kv_heads; ++h) read(dump.dense.key_row(h, 0), rows);
  for (std::size_t h = 0; h < dump.shape.kv.n_kv_heads; ++h) read(dump.dense.value_row(h, 0), rows);
  ObservedQueries& observed = dump.observed;
  observed.n_heads = n_heads;
  observed.n_tokens = count("n_queries");
  observed.head_dim = dump.shape.kv.head_dim;
  observed.queries.resize(n_heads * observed.n_tokens * observed.head_dim);
  observed.log_sum_exp.resize(n_heads * observed.n_tokens);
  read(observed.queries.data(), observed.queries.size() * sizeof(float));
  read(observed.log_sum_exp.data(), observed.log_sum_exp.size() * sizeof(float));
  return dump;
}

}  // namespace precis::test
