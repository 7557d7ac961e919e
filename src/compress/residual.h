// The residual stage: what is not kept is summarised in a few entries more, rows of the same
// softmax as the kept ones, paid for with entries that are not kept then. The driver offers several
// splits of a head's budget, the stage builds the summaries, judges them, and chooses.
//
// Stateless, const and thread-safe as the other stages (stage.h).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "compress/stage.h"
#include "kernels/sharpness_gate.h"

namespace precis {

// One way to spend a head's budget: what its main section then holds, and how many entries that
// leaves for the residual section.
struct HeadSplit {
  const HeadPlan* plan = nullptr;
  const HeadMerge* merge = nullptr;  // nullptr: nothing is merged
  std::span<const float> bias;       // of the main entries, as far as known now; empty: all 0
  std::size_t n_residual = 0;        // at most; 0: no residual section
};

// Entries of a residual section, ready to be stored, and the gate on them.
struct ResidualEntries {
  std::vector<float> keys;    // [n, head_dim]
  std::vector<float> values;  // [n, head_dim]
  std::vector<float> bias;    // [n], finite
  SharpnessGate gate;

  std::size_t size() const { return bias.size(); }
};

// A split that was tried on queries that nothing was fitted to. Sums over these queries and the
// query heads of the group; everything 0 if the stage did not look.
struct ResidualTrial {
  ResidualEntries entries;
  double error = 0;          // ||o - o_full||^2
  double energy = 0;         // ||o_full||^2
  double evicted_mass = 0;   // attention that the full cache gives to what is not in main entries
  double restored_mass = 0;  // attention of the same unit that the residual entries get, gated
  double gate_factor = 0;    // of the gate
  std::size_t n_rows = 0;    // queries times heads
};

class Residual {
 public:
  virtual ~Residual() = default;
  // How many of the prompt's last queries are read; 0: the prompt is too short for this stage,
  // which then does nothing.
  virtual std::size_t queries_needed(std::size_t n_tokens) const = 0;
  // The parts of a budget that may go to the residual section, in (0, 1); the driver tries each, if
  // enough is left for the protected tokens, and none at all.
  virtual const std::vector<double>& parts() const = 0;
  // One trial per split, in order; splits[0] has no residual section. head.scores are set.
  virtual std::vector<ResidualTrial> try_splits(HeadView& head,
                                                std::span<const HeadSplit> splits) const = 0;
  // Which split each head of a layer takes, given [head][split]. A split that is not open to a head
  // has usable 0 there; 0 is open to all.
  virtual std::vector<std::size_t> choose(
      std::span<const std::vector<ResidualTrial>> trials,
      std::span<const std::vector<std::uint8_t>> usable) const = 0;
};

}  // namespace precis
