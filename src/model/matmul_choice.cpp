#include "model/matmul_choice.h"

#include <algorithm>

#include "base/error.h"

namespace precis {
namespace {

// Between two sizes ggml is kept up to the next one, so the steps are smaller where ggml's small
// batches are. Above 256 tokens nothing changes any more: the expansion is below a tenth by then.
constexpr std::size_t kBatchSizes[] = {256, 128, 96, 64, 48, 32, 24, 16, 12, 8, 4};
constexpr double kTie = 1.02;
constexpr double kClear = 1.3;  // a ratio that repeating would not turn
constexpr int kMostPairs = 5;

bool f32_wins(const MatmulTimer& timer, std::size_t n_tokens) {
  double ggml = timer(MatmulWay::kGgml, n_tokens);
  double f32 = timer(MatmulWay::kSgemm, n_tokens);
  for (int pair = 1; pair < kMostPairs && f32 < kClear * ggml && ggml < kClear * f32; ++pair) {
    ggml = std::min(ggml, timer(MatmulWay::kGgml, n_tokens));
    f32 = std::min(f32, timer(MatmulWay::kSgemm, n_tokens));
  }
  return f32 <= kTie * ggml;
}

struct ModeName {
  MatmulMode mode;
  const char* name;
};
constexpr ModeName kModeNames[] = {
    {MatmulMode::kAuto, "auto"}, {MatmulMode::kGgml, "ggml"}, {MatmulMode::kSgemm, "sgemm"}};

}  // namespace

const char* matmul_mode_name(MatmulMode mode) {
  for (const ModeName& m : kModeNames)
    if (m.mode == mode) return m.name;
  PRECIS_CHECK(false, static_cast<int>(mode));
}

MatmulMode parse_matmul_mode(std::string_view name) {
  for (const ModeName& m : kModeNames)
    if (name == m.name) return m.mode;
  throw Error(ErrorCode::kInvalidArgument,
              concat("'", name, "' is no way to multiply matrices: auto, ggml or sgemm"));
}

std::size_t choose_min_tokens(const MatmulTimer& timer) {
  std::size_t least = kNeverTokens;
  for (const std::size_t n_tokens : kBatchSizes) {
    if (!f32_wins(timer, n_tokens)) break;
    least = n_tokens;
  }
  return least;
}

}  // namespace precis
