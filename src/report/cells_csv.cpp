#include <string>

#include "base/error.h"
#include "base/fields.h"
#include "report/csv.h"

namespace precis {
namespace {

constexpr const char* kHeader =
    "table,model,model_sha256,seed,suite,query,task,length,index,label,method,keep,type_k,type_v,"
    "layer,head,bin,first_token,end_token,kept,merged,bias,residual,output_error\n";

std::string beginning_of(const char* kind, const Source& source, const RowKey& key) {
  return concat(kind, ",", csv_text(source.model), ",", csv_text(source.model_sha256), ",",
                source.seed, ",", csv_text(key.suite), ",", csv_text(key.query), ",",
                csv_text(key.task), ",", key.length, ",", key.index, ",", csv_text(key.label), ",",
                csv_text(key.method), ",", csv_text(key.keep), ",", csv_text(key.type_k), ",",
                csv_text(key.type_v), ",");
}

std::string cell_text(const std::vector<double>& cells, std::size_t i) {
  return cells.empty() ? std::string() : print_number(cells[i]);
}

void add_kept(const Source& source, const KeptRow& row, std::string& out) {
  const std::string beginning = beginning_of("kept", source, row.key);
  for (std::size_t h = 0; h < row.n_layers * row.n_heads; ++h)
    for (std::size_t b = 0; b < row.n_bins; ++b) {
      const std::size_t i = h * row.n_bins + b;
      out += beginning;
      out += concat(h / row.n_heads, ",", h % row.n_heads, ",", b, ",",
                    b * row.n_tokens / row.n_bins, ",", (b + 1) * row.n_tokens / row.n_bins, ",",
                    print_number(row.kept[i]), ",", cell_text(row.merged, i), ",",
                    cell_text(row.bias, i), ",", cell_text(row.residual, h), ",\n");
    }
}

void add_output_error(const Source& source, const FidelityRow& row, std::string& out) {
  const std::string beginning = beginning_of("output_error", source, row.key);
  for (std::size_t l = 0; l < row.output_error.size(); ++l)
    for (std::size_t h = 0; h < row.output_error[l].size(); ++h)
      out += beginning + concat(l, ",", h, ",,,,,,,,", print_number(row.output_error[l][h]), "\n");
}

}  // namespace

std::string print_cells_csv(const Summary& summary) {
  std::string out = kHeader;
  for (const SourcedRow& sourced : summary.rows) {
    const Source& source = summary.sources[sourced.source];
    if (const auto* kept = std::get_if<KeptRow>(sourced.row)) add_kept(source, *kept, out);
    if (const auto* error = std::get_if<FidelityRow>(sourced.row))
      add_output_error(source, *error, out);
  }
  return out;
}

}  // namespace precis
