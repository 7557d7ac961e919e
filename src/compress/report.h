// What one compression did, measured from live buffers.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "kernels/row_type.h"

namespace precis {

struct CompressionReport {
  std::string method;                  // canonical SPEC
  std::string keep;                    // Budget::print()
  std::optional<std::string> skipped;  // why nothing was done
  std::size_t n_tokens = 0;
  std::size_t dense_bytes = 0;  // keys and values of the compressible layers, uncompressed
  std::size_t kept_bytes = 0;   // FrozenLayer::bytes() summed over the same layers
  std::vector<std::vector<std::size_t>> entries;  // [compressible layer][KV head]
  // How the keys of each compressible layer are stored, and their held-out error (row_choice.h); a
  // finer type than asked for where that error was too large. 0 for f16.
  std::vector<RowType> key_types;
  std::vector<double> key_errors;
  // The most that was held of layers so far while their shares of the budget were open: entries as
  // f16, and scores. 0: every layer's share was known before.
  std::size_t most_held_bytes = 0;
  std::size_t n_routed = 0;  // sums over layers and heads, see HeadMerge
  std::size_t n_dropped = 0;
  std::size_t n_floored = 0;
  // R of SelKV Eq. 6 of every kept entry, [compressible layer][KV head]; empty unless details were
  // asked for, and so is a layer where nothing was merged.
  std::vector<std::vector<std::vector<float>>> mass_ratios;
  double repeat_ms = 0;  // reading the prompt a second time, if the method wants that
  double score_ms = 0;   // wall time of each stage, summed over layers
  double select_ms = 0;
  double merge_ms = 0;  // with compensation
  double freeze_ms = 0;

  double compress_ms() const { return repeat_ms + score_ms + select_ms + merge_ms + freeze_ms; }
};

}  // namespace precis
