// How closely Precis follows libllama on the same file: shared by the parity test and the
// parity tool.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/session.h"
#include "oracle/libllama_oracle.h"

namespace precis::test {

// sum (a - b)^2 / sum b^2; b is the reference. Infinite if a holds anything not finite.
double nmse(std::span<const float> a, std::span<const float> b);

// KL(p || q) in nats of the softmaxes of two rows of logits.
double kl_divergence(std::span<const float> p_logits, std::span<const float> q_logits);

std::size_t argmax(std::span<const float> row);

struct Parity {
  std::size_t n_compared = 0;
  double mean_kl = 0;
  double max_kl = 0;
  double top1 = 0;                   // part of the positions where both prefer the same token
  double mean_logit_difference = 0;  // mean |difference| of centred logits, for scale
  std::size_t n_greedy = 0;
  std::size_t n_agreed = 0;  // greedy tokens before the first difference
  // At the first difference: how far apart libllama's own logits of the two candidates are.
  std::optional<double> gap;
};

// A difference of greedy answers is excused if libllama itself holds the two tokens this close:
// three times the mean difference of logits on the noisiest of the quantised test models.
inline constexpr double kNearTie = 0.5;

// Feeds `tokens` to both: the first n_prefill through Session::prefill, the rest through extend in
// pieces. Then n_greedy greedy tokens after the first half of `tokens`.
Parity measure_parity(const std::shared_ptr<const Engine>& engine, Oracle& oracle,
                      std::span<const Token> tokens, std::size_t n_prefill, std::size_t n_greedy);

// libllama against itself: the same tokens in pieces of 16, where its attention takes another path.
// What it differs by is rounding, and nothing that is not the same code can be asked to differ by
// less.
Parity measure_noise(Oracle& oracle, Oracle& other, std::span<const Token> tokens,
                     std::size_t other_piece = 16);

// How far the answers of a quantised file are from those of the same weights without quantised
// activations: libllama on a copy in f32 (f16 if `half`), with f32 attention. The copy lies in
// `scratch` meanwhile. Rows: Precis with the f32 product, Precis with ggml's, libllama.
struct DistanceRow {
  std::string name;
  Parity parity;  // to the f32 reference
};
std::vector<DistanceRow> measure_distances(const std::string& path, const std::string& scratch,
                                           bool half, std::span<const Token> tokens,
                                           std::size_t n_threads);

// One line of the table; header() is its head.
std::string parity_header();
std::string parity_row(const std::string& model, const Parity& parity);

}  // namespace precis::test
