// A condensed layer whose entries are chosen, but some of which may still be given up for later
// layers.
#pragma once

#include <cstddef>
#include <vector>

#include "cache/kv_rows.h"
#include "compress/residual.h"
#include "compress/stage.h"

namespace precis {

class LayerDraft {
 public:
  // What the plans keep of the dense rows; merged keys and values replace the stored ones. merges
  // may be empty. rows: of the finished layer. is_open: some entries may be given up; until then
  // they are held as plain rows in f16, which is where merged rows are rounded. placing: where the
  // entries are to stand; the pointers may be nullptr, and outlive the draft.
  struct Placing {
    const Positioner* positioner = nullptr;
    const Rope* rope = nullptr;  // of the layer
  };
  LayerDraft(const TailRows& dense, std::span<const HeadPlan> plans,
             std::span<const HeadMerge> merges, const RowTypes& rows, bool is_open,
             const Placing& placing, Executor& executor, const CancelFlag* cancel);

  const RowTypes& rows() const { return rows_; }
  std::size_t n_entries() const;
  // Of all heads; without scores.
  std::size_t bytes() const;
  const LayerEntries& entries() const { return entries_; }
  // R of every entry, [head][entry]; empty if nothing was merged.
  std::vector<std::vector<float>> mass_ratios() const;

  // Copies the scores of the layer, with everything that is not held below all of them.
  std::vector<float> masked(const std::vector<float>& scores, std::size_t n_tokens) const;
  // Gives up what is not in the plans; what they keep beyond what is held is not looked at.
  // REQUIRES: open.
  void drop_to(std::span<const HeadPlan> plans);

  void set_biases(std::vector<std::vector<float>> biases);
  // [n_kv_heads], packed as the main rows are. Not for open lists.
  void set_residuals(std::span<const ResidualEntries> residuals, Executor& executor);
  // The finished layer; the draft is spent. Keys are turned to their new places once, in f32, from
  // the row as it was stored or merged.
  FrozenLayer freeze(Executor& executor);
  // The first place behind those of all entries, relative to the prompt's first position.
  std::size_t next_place() const;

 private:
  struct OpenRows {
    std::vector<Half> keys;    // [entries, head_dim]
    std::vector<Half> values;  // [entries, head_dim]
  };

  // Turns keys of one head, [count, head_dim], of its entries from `first` on.
  void turn(std::size_t head, std::size_t first, std::size_t count, float* keys,
            std::span<const std::int32_t> places) const;
  std::vector<std::int32_t> places_of(std::size_t head) const;

  KvShape shape_;
  std::int32_t first_position_ = 0;
  std::size_t n_tokens_ = 0;
  Placing placing_;
  RowTypes rows_;
  bool is_open_ = false;
  bool is_merged_ = false;
  LayerEntries entries_;
  std::vector<FrozenLayer::Head> heads_;  // without rows while open
  std::vector<OpenRows> open_;            // [n_kv_heads] while open
};

}  // namespace precis
