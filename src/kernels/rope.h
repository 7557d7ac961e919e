// Rotary position embeddings (RoPE) as plain numbers, and rows that are turned to other positions.
//
// RoPE at position p multiplies each pair of channels, taken as a complex number, by
// magnitude * exp(i * p * frequency). So a row at p becomes the row at p + delta by a turn of
// delta * frequency; its magnitude is in it already.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace precis {

struct Rope {
  std::size_t n_rot = 0;     // the first n_rot channels of a head are turned, the others are not
  bool interleaved = false;  // channels 2i and 2i + 1 are a pair; else i and i + n_rot / 2
  // Radians per position of each pair, [n_rot / 2]. Base, scaling, YaRN's ramp and a file's own
  // factors are all in them.
  std::vector<double> frequencies;
  float magnitude = 1.0f;  // of YaRN; 1 elsewhere

  std::size_t n_pairs() const { return frequencies.size(); }
  std::size_t first_channel(std::size_t pair) const { return interleaved ? 2 * pair : pair; }
  std::size_t second_channel(std::size_t pair) const {
    return interleaved ? 2 * pair + 1 : pair + n_pairs();
  }
};

// A turn by a number of positions, of any number of rows. Angles, sines and cosines are those of
// double, products are f32.
class RopeTurn {
 public:
  // `rope` must outlive this. Starts as a turn by 0.
  explicit RopeTurn(const Rope& rope);

  void set_delta(std::int64_t delta);
  // row [head_dim], head_dim >= rope.n_rot.
  void apply(float* row) const;

 private:
  const Rope& rope_;
  std::vector<float> cos_;
  std::vector<float> sin_;
};

}  // namespace precis
