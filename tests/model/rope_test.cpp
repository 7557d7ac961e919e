// RoPE as plain numbers against ggml's own: frequencies and magnitude of every variant, and a
// turned row against the row at the other position.
#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "model/ggml_backend.h"
#include "model/model.h"
#include "support/test_models.h"

namespace precis::test {
namespace {

struct RopeCase {
  const char* name;
  RopePairs pairs;
  std::size_t n_rot;
  RopeConfig config;
  std::size_t n_ctx_orig;
  bool has_factors;
};

constexpr RopeCase kCases[] = {
    {"plain", RopePairs::kAdjacent, 64, {1e4f, 1.0f, 0.0f, 1.0f, true}, 2048, false},
    {"halves", RopePairs::kHalves, 64, {1e6f, 1.0f, 0.0f, 1.0f, true}, 32768, false},
    {"factors", RopePairs::kAdjacent, 64, {5e5f, 1.0f, 0.0f, 1.0f, true}, 8192, true},
    {"linear", RopePairs::kHalves, 64, {1e4f, 0.125f, 0.0f, 1.0f, true}, 2048, false},
    {"partial", RopePairs::kHalves, 32, {1e4f, 1.0f, 0.0f, 1.0f, true}, 2048, false},
    {"partial_adjacent", RopePairs::kAdjacent, 24, {1e4f, 1.0f, 0.0f, 1.0f, true}, 2048, false},
    {"yarn", RopePairs::kHalves, 64, {1e6f, 0.25f, 1.0f, 1.0f, true}, 4096, false},
    {"yarn_short", RopePairs::kAdjacent, 64, {1e4f, 0.0625f, 1.0f, 1.0f, true}, 64, false},
    {"yarn_half", RopePairs::kHalves, 64, {1e4f, 0.25f, 0.5f, 0.8f, true}, 1024, false},
    {"yarn_factors", RopePairs::kAdjacent, 48, {1e4f, 0.25f, 1.0f, 0.7f, true}, 512, true},
};
constexpr std::size_t kHeadDim = 64;

class RopeTest : public testing::TestWithParam<RopeCase> {
 protected:
  void SetUp() override {
    const RopeCase& c = GetParam();
    config_.n_layers = 1;
    config_.is_sliding = {false};
    config_.head_dim = kHeadDim;
    config_.n_rot = c.n_rot;
    config_.n_ctx_orig = c.n_ctx_orig;
    config_.rope_pairs = c.pairs;
    config_.rope_global = c.config;
    if (c.has_factors)
      for (std::size_t i = 0; i < c.n_rot / 2; ++i)
        factors_.push_back(1.0f + 0.3f * static_cast<float>(i));
    std::mt19937 draw(5);
    std::normal_distribution<float> normal;
    for (std::size_t c2 = 0; c2 < kHeadDim; ++c2) row_.push_back(normal(draw));
  }

  // The row at these positions, [positions, kHeadDim], by ggml.
  std::vector<float> by_ggml(const std::vector<std::int32_t>& positions) {
    const RopeCase& c = GetParam();
    const auto n = static_cast<std::int64_t>(positions.size());
    ggml_context_ptr context(ggml_init(
        {16 * ggml_tensor_overhead() + ggml_graph_overhead_custom(16, false), nullptr, true}));
    ggml_tensor* x = ggml_new_tensor_3d(context.get(), GGML_TYPE_F32, kHeadDim, 1, n);
    ggml_tensor* p = ggml_new_tensor_1d(context.get(), GGML_TYPE_I32, n);
    ggml_tensor* f = nullptr;
    if (c.has_factors)
      f = ggml_new_tensor_1d(context.get(), GGML_TYPE_F32, static_cast<std::int64_t>(c.n_rot / 2));
    for (ggml_tensor* t : {x, p, f})
      if (t != nullptr) ggml_set_input(t);
    const int mode = c.pairs == RopePairs::kHalves ? GGML_ROPE_TYPE_NEOX : GGML_ROPE_TYPE_NORMAL;
    ggml_tensor* y = ggml_rope_ext(
        context.get(), x, p, f, static_cast<int>(c.n_rot), mode, static_cast<int>(c.n_ctx_orig),
        c.config.base, c.config.freq_scale, c.config.ext_factor, c.config.attn_factor, 32.0f, 1.0f);
    ggml_cgraph* graph = ggml_new_graph_custom(context.get(), 16, false);
    ggml_build_forward_expand(graph, y);
    ggml_gallocr_ptr allocator(ggml_gallocr_new(backend_.impl().plain_buffer_type()));
    EXPECT_TRUE(ggml_gallocr_alloc_graph(allocator.get(), graph));
    for (std::size_t t = 0; t < positions.size(); ++t)
      std::memcpy(static_cast<float*>(x->data) + t * kHeadDim, row_.data(),
                  kHeadDim * sizeof(float));
    std::memcpy(p->data, positions.data(), positions.size() * sizeof(std::int32_t));
    if (f != nullptr) std::memcpy(f->data, factors_.data(), factors_.size() * sizeof(float));
    backend_.impl().compute(graph, nullptr);
    const auto* out = static_cast<const float*>(y->data);
    return {out, out + positions.size() * kHeadDim};
  }

  // How far ggml's angle of a pair may be from the exact one at position p, in radians: powers are
  // multiplied up in f32, and the angle itself is rounded.
  double angle_error(const Rope& rope, std::size_t pair, std::int32_t p) const {
    const double size = std::abs(static_cast<double>(p)) * rope.frequencies[pair];
    return size * static_cast<double>(pair + 4) * 0x1p-23;
  }

  // turned [kHeadDim] against ggml's row; both from angles with these errors.
  void compare(const Rope& rope, const float* turned, const float* wanted,
               std::initializer_list<std::int32_t> positions) const {
    for (std::size_t i = 0; i < rope.n_pairs(); ++i) {
      const std::size_t a = rope.first_channel(i), b = rope.second_channel(i);
      const double size =
          std::hypot(static_cast<double>(wanted[a]), static_cast<double>(wanted[b]));
      double angle = 1e-6;
      for (const std::int32_t p : positions) angle += angle_error(rope, i, p);
      EXPECT_NEAR(turned[a], wanted[a], size * angle) << "channel " << a;
      EXPECT_NEAR(turned[b], wanted[b], size * angle) << "channel " << b;
    }
    for (std::size_t c = rope.n_rot; c < kHeadDim; ++c) EXPECT_EQ(turned[c], wanted[c]);
  }

  Backend backend_{1};
  ModelConfig config_;
  std::vector<float> factors_;
  std::vector<float> row_;
};
INSTANTIATE_TEST_SUITE_P(Variants, RopeTest, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

const std::vector<std::int32_t> kPositions = {0, 1, 2, 17, 100, 101, 1000, 4095, 30000};

TEST_P(RopeTest, IsMagnitudeTimesATurn) {
  const Rope rope = describe_rope(config_, 0, factors_);
  const std::vector<float> wanted = by_ggml(kPositions);
  RopeTurn turn(rope);
  for (std::size_t t = 0; t < kPositions.size(); ++t) {
    SCOPED_TRACE(kPositions[t]);
    std::vector<float> row = row_;
    turn.set_delta(kPositions[t]);
    turn.apply(row.data());
    for (std::size_t c = 0; c < rope.n_rot; ++c) row[c] *= rope.magnitude;
    compare(rope, row.data(), wanted.data() + t * kHeadDim, {kPositions[t]});
  }
}

TEST_P(RopeTest, ATurnedRowIsTheRowAtTheOtherPosition) {
  const Rope rope = describe_rope(config_, 0, factors_);
  const std::vector<float> rows = by_ggml(kPositions);
  RopeTurn turn(rope);
  for (std::size_t from = 0; from < kPositions.size(); ++from)
    for (std::size_t to = 0; to < kPositions.size(); ++to) {
      SCOPED_TRACE(std::to_string(kPositions[from]) + " to " + std::to_string(kPositions[to]));
      std::vector<float> row(rows.begin() + static_cast<std::ptrdiff_t>(from * kHeadDim),
                             rows.begin() + static_cast<std::ptrdiff_t>((from + 1) * kHeadDim));
      turn.set_delta(kPositions[to] - kPositions[from]);
      turn.apply(row.data());
      compare(rope, row.data(), rows.data() + to * kHeadDim, {kPositions[from], kPositions[to]});
    }
}

TEST(ModelRope, FollowsTheLayersKind) {
  Backend backend(1);
  const auto model = Model::load(tiny_model("gemma3-scaled"), backend);
  // Global layers: base 1e6, 8 times as long; sliding ones: base 5000, unscaled.
  const ModelConfig& c = model->config();
  for (std::size_t il = 0; il < c.n_layers; ++il) {
    const Rope rope = model->rope(il);
    ASSERT_EQ(rope.n_pairs(), 16u);
    EXPECT_FALSE(rope.interleaved);
    EXPECT_EQ(rope.magnitude, 1.0f);
    EXPECT_DOUBLE_EQ(rope.frequencies[0], c.is_sliding[il] ? 1.0 : 0.125);
    EXPECT_DOUBLE_EQ(rope.frequencies[8],
                     c.is_sliding[il] ? 1 / std::sqrt(5000.0) : 0.125 / 1000.0);
  }
}

TEST(ModelRope, HasTheFilesFactors) {
  Backend backend(1);
  const Rope rope = Model::load(tiny_model("llama"), backend)->rope(2);
  ASSERT_EQ(rope.n_pairs(), 8u);
  EXPECT_TRUE(rope.interleaved);
  // tools/make_tiny_models.py: min(8, max(1, 2 i - 4)).
  const double factors[] = {1, 1, 1, 2, 4, 6, 8, 8};
  for (std::size_t i = 0; i < 8; ++i)
    EXPECT_NEAR(rope.frequencies[i], std::pow(1e4, -static_cast<double>(i) / 8) / factors[i],
                1e-12);
}

}  // namespace
}  // namespace precis::test
