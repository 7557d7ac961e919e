// Which of two ways multiplies a batch of tokens by a weight matrix: ggml's mul_mat, which rounds
// activations to 8 bits for quantised weights, or Precis' product in f32 (kernels/matmul.h).
//
// The f32 product expands the matrix once per call, so it wins from some batch size on. That size
// depends on the type, the shape and the machine, and is measured when a model is loaded. Single
// tokens are always left to ggml.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace precis {

// kAuto measures. kGgml and kSgemm fix the choice, e.g. to get the same bits on every run: kSgemm
// takes the f32 product for every batch of two tokens or more.
enum class MatmulMode { kAuto, kGgml, kSgemm };

const char* matmul_mode_name(MatmulMode mode);
// "auto", "ggml" or "sgemm"; throws Error(kInvalidArgument) naming the three otherwise.
MatmulMode parse_matmul_mode(std::string_view name);

constexpr std::size_t kNeverTokens = SIZE_MAX;

// What was decided for the matrices of one type and shape.
struct MatmulKind {
  std::string type;  // ggml's name, e.g. "q4_1"
  std::size_t n_in = 0;
  std::size_t n_out = 0;
  std::size_t min_tokens = kNeverTokens;  // smallest batch for the f32 product
};

// All kinds of a model.
struct MatmulReport {
  MatmulMode mode = MatmulMode::kAuto;
  std::vector<MatmulKind> kinds;
  double measuring_ms = 0;
};

enum class MatmulWay { kGgml, kSgemm };

// Runs one product of n_tokens and returns its time in any unit.
using MatmulTimer = std::function<double(MatmulWay way, std::size_t n_tokens)>;

// Smallest batch from which the f32 product wins: sizes are tried from the largest down until it
// loses. A tie (within 2 %) is a win, because the f32 product is the more exact one. Each size
// takes the best of a few runs of both ways in turns, fewer when the first pair is already clear.
// Returns kNeverTokens if it loses at the largest size.
std::size_t choose_min_tokens(const MatmulTimer& timer);

}  // namespace precis
