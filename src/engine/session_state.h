// A condensed session as data: what a file of it holds, and what is checked before a session goes
// on from it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/kv_rows.h"
#include "model/config.h"

namespace precis {

// What engine/layer_cache.h holds of one layer.
struct LayerState {
  std::shared_ptr<const FrozenLayer> frozen;  // nullptr on sliding layers, and only there
  std::vector<PackedList> packed_tail;        // [n_kv_heads] or empty
  TailRows tail;
};

struct SessionState {
  std::size_t next_position = 0;
  // Tokens so far; more than next_position where a method has moved the kept entries together.
  std::size_t n_read = 0;
  RowTypes rows;                   // how later tokens are stored once they have aged
  std::vector<float> logits;       // after the last token, [n_vocab]; empty after restore()
  std::vector<LayerState> layers;  // [n_layers]
};

// Why no session of such a model can be in this state: the first thing found, with its layer and
// the two numbers that disagree; nothing if Session::resume takes it. Looks at everything, rows
// included: counts, shapes, order of positions, and that all numbers are finite.
std::optional<std::string> fault_of(const SessionState& state, const ModelConfig& config);

}  // namespace precis
