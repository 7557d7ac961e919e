#include "eval/kept_map.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace precis {
namespace {

// As many columns as a heatmap shows on a page.
constexpr std::size_t kMostBins = 64;
constexpr std::size_t kTokensOfWords = 8;

double rounded(double x) { return std::round(x * 1000) / 1000; }

std::size_t begin_of(std::size_t bin, const KeptRow& row) {
  return bin * row.n_tokens / row.n_bins;
}

// The bin that holds a position: begin_of(bin) <= position < begin_of(bin + 1).
std::size_t bin_of(std::size_t position, const KeptRow& row) {
  std::size_t bin = position * row.n_bins / row.n_tokens;
  while (bin + 1 < row.n_bins && begin_of(bin + 1, row) <= position) ++bin;
  return bin;
}

// One head's entries, added to the bins of its row of cells.
struct HeadBins {
  std::vector<double> entries;
  std::vector<double> merged;
  std::vector<double> bias;
};

HeadBins count(const FrozenLayer& layer, std::size_t head, const std::vector<float>* mass_ratio,
               const KeptRow& row) {
  HeadBins out{std::vector<double>(row.n_bins), std::vector<double>(row.n_bins),
               std::vector<double>(row.n_bins)};
  const PackedView view = layer.head(head);
  for (std::size_t e = 0; e < layer.n_main(head); ++e) {
    const std::size_t bin = bin_of(static_cast<std::size_t>(layer.position(head, e)), row);
    out.entries[bin] += 1;
    if (mass_ratio != nullptr) out.merged[bin] += static_cast<double>((*mass_ratio)[e]) - 1;
    if (view.bias != nullptr) out.bias[bin] += static_cast<double>(view.bias[e]);
  }
  return out;
}

}  // namespace

KeptRow map_kept(const Session& session, const CompressionReport& report,
                 std::span<const Token> context) {
  const Engine& engine = *session.engine();
  const std::vector<std::size_t> layers = engine.compressible_indices();
  PRECIS_CHECK(report.mass_ratios.size() == layers.size(), "details were not asked for");
  KeptRow row;
  row.n_tokens = context.size();
  row.n_layers = layers.size();
  row.n_heads = engine.config().n_kv_heads;
  row.n_bins = std::min(kMostBins, context.size());
  bool any_merged = false;
  bool any_bias = false;
  bool any_residual = false;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const std::shared_ptr<const FrozenLayer> held = session.condensed_layer(layers[l]);
    const FrozenLayer& layer = *held;
    for (std::size_t h = 0; h < row.n_heads; ++h) {
      const std::vector<float>* ratios =
          report.mass_ratios[l].empty() ? nullptr : &report.mass_ratios[l][h];
      const HeadBins bins = count(layer, h, ratios, row);
      for (std::size_t b = 0; b < row.n_bins; ++b) {
        const auto width = static_cast<double>(begin_of(b + 1, row) - begin_of(b, row));
        const double n = std::max(bins.entries[b], 1.0);
        row.kept.push_back(rounded(bins.entries[b] / width));
        row.merged.push_back(rounded(bins.merged[b] / n));
        row.bias.push_back(rounded(bins.bias[b] / n));
      }
      const std::size_t n = std::max<std::size_t>(1, layer.n_entries(h));
      row.residual.push_back(
          rounded(static_cast<double>(layer.n_residual(h)) / static_cast<double>(n)));
      any_merged = any_merged || ratios != nullptr;
      any_bias = any_bias || layer.head(h).bias != nullptr;
      any_residual = any_residual || layer.n_residual(h) > 0;
    }
  }
  if (!any_merged) row.merged.clear();
  if (!any_bias) row.bias.clear();
  if (!any_residual) row.residual.clear();
  for (std::size_t b = 0; b < row.n_bins; ++b) {
    const std::size_t first = begin_of(b, row);
    const std::size_t n = std::min(kTokensOfWords, begin_of(b + 1, row) - first);
    const auto tokens = context.subspan(first, n);
    row.words.push_back(engine.tokenizer().detokenize({tokens.begin(), tokens.end()}));
  }
  return row;
}

}  // namespace precis
