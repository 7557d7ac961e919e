// What one compression did, measured from live buffers.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "kernels/row_type.h"
#include "kernels/sharpness_gate.h"

namespace precis {

// The residual section of one KV head. Errors and masses are those of held-out queries: relative
// squared error of the attention output, and shares of the full cache's attention. 0 where the
// stage did not look.
struct ResidualReport {
  std::size_t n_entries = 0;  // r; 0: none was worth its place
  double error_before = 0;    // of the pure base method at the same budget
  double error_after = 0;     // of what is kept
  double evicted_mass = 0;    // outside of the main entries that are kept
  double restored_mass = 0;   // that the residual entries get
  double gate_factor = 1;     // mean
  SharpnessGate gate;
};

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
  // f16, scores, and with a residual stage dense rows and queries too. 0: every layer's share was
  // known before.
  std::size_t most_held_bytes = 0;
  std::size_t n_routed = 0;  // sums over layers and heads, see HeadMerge
  std::size_t n_dropped = 0;
  std::size_t n_floored = 0;
  // R of SelKV Eq. 6 of every kept entry, [compressible layer][KV head]; empty unless details were
  // asked for, and so is a layer where nothing was merged.
  std::vector<std::vector<std::vector<float>>> mass_ratios;
  // [compressible layer][KV head]; empty without a residual stage, or if the prompt was too short
  // for it, which is then said here.
  std::vector<std::vector<ResidualReport>> residuals;
  std::optional<std::string> residual_skipped;
  double repeat_ms = 0;  // reading the prompt a second time, if the method wants that
  double score_ms = 0;   // wall time of each stage, summed over layers
  double select_ms = 0;
  double merge_ms = 0;  // with compensation
  double residual_ms = 0;
  double freeze_ms = 0;

  double compress_ms() const {
    return repeat_ms + score_ms + select_ms + merge_ms + residual_ms + freeze_ms;
  }
};

}  // namespace precis
