// The steps of summarise(): inside of summary.cpp and its neighbours only.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "report/summary.h"

namespace precis::detail {

struct Against {
  std::string label;
  std::string keep;  // empty: not asked for
};

// Rows of one table, before they are put into lines: what tables of all kinds share.
template <class Row>
struct TableRows {
  std::size_t source = 0;
  std::string suite;
  std::string query;
  std::vector<Variant> variants;
  std::vector<std::pair<std::size_t, const Row*>> rows;  // variant, row
};

// Finds or adds the variant of a key. Throws Error(kInvalidArgument) beyond 500.
std::size_t variant_of(std::vector<Variant>& variants, const RowKey& key);
// Fills `line` and `name`, with SPEC and row types only where labels would be mistaken otherwise.
void name_variants(std::vector<Variant>& variants);
std::vector<std::optional<std::size_t>> find_baselines(const std::vector<Variant>& variants,
                                                       const Against& against);

// Tables in the order of their first row.
template <class Row>
std::vector<TableRows<Row>> split_rows(const std::vector<SourcedRow>& rows) {
  std::vector<TableRows<Row>> out;
  std::map<std::string, std::size_t> places;
  for (const SourcedRow& sourced : rows) {
    const Row* row = std::get_if<Row>(sourced.row);
    if (row == nullptr) continue;
    const RowKey& key = row->key;
    const std::string name =
        std::to_string(sourced.source) + '\x1f' + key.suite + '\x1f' + key.query;
    const auto [found, is_new] = places.try_emplace(name, out.size());
    if (is_new) out.push_back({sourced.source, key.suite, key.query, {}, {}});
    TableRows<Row>& table = out[found->second];
    table.rows.emplace_back(variant_of(table.variants, key), row);
  }
  for (TableRows<Row>& table : out) name_variants(table.variants);
  return out;
}

double ratio_of(double part, double whole);  // 0 if there is no whole

std::vector<ScoreTable> score_tables(const std::vector<SourcedRow>& rows, const Against& against,
                                     const Bootstrap& bootstrap);
std::vector<FidelityTable> fidelity_tables(const std::vector<SourcedRow>& rows,
                                           const Against& against, const Bootstrap& bootstrap);
std::vector<TimingTable> timing_tables(const std::vector<SourcedRow>& rows);

}  // namespace precis::detail
