// Attention over main entries, residual entries behind their gate, packed and plain tail, against
// loops in double over what is stored: several tokens at once, one token, any number of threads,
// every row type.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "engine/layer_cache.h"
#include "engine/session_checks.h"
#include "support/head_rows.h"

namespace precis::test {
namespace {

constexpr std::size_t kDim = 64;
constexpr std::size_t kHeads = 2;
constexpr std::size_t kGroup = 3;
constexpr std::size_t kTail = 70;

std::vector<float> draw(std::size_t n, std::mt19937& random, float size = 1) {
  std::normal_distribution<float> normal;
  std::vector<float> out;
  for (std::size_t i = 0; i < n; ++i) out.push_back(size * normal(random));
  return out;
}

PackedList pack(const RowTypes& types, std::size_t n, std::mt19937& random) {
  PackedList list(types, kDim);
  const std::vector<float> keys = draw(n * kDim, random);
  const std::vector<float> values = draw(n * kDim, random);
  list.append(keys.data(), values.data(), n);
  return list;
}

// Heads with unequal sections; the second may have no residual entries.
std::shared_ptr<const FrozenLayer> freeze(const RowTypes& types, std::size_t n_second,
                                          const SharpnessGate& gate) {
  std::mt19937 random(11);
  std::vector<FrozenLayer::Head> heads(kHeads);
  for (std::size_t h = 0; h < kHeads; ++h) {
    FrozenLayer::Head& head = heads[h];
    head.rows = pack(types, h == 0 ? 333 : 170, random);
    head.bias = draw(head.rows.size(), random, 0.3f);
    const std::size_t n = h == 0 ? 201 : n_second;
    if (n == 0) continue;
    head.residual_rows = pack(types, n, random);
    head.residual_bias = draw(n, random, 1.0f);
    for (float& bias : head.residual_bias) bias += 1;
    head.gate = gate;
  }
  return std::make_shared<const FrozenLayer>(KvShape{kHeads, kDim}, std::move(heads));
}

ModelConfig config() {
  ModelConfig c;
  c.n_layers = 1;
  c.n_heads = kHeads * kGroup;
  c.n_kv_heads = kHeads;
  c.head_dim = kDim;
  c.attn_scale = 0.3f;
  c.is_sliding = {false};
  return c;
}

struct Call {
  std::vector<float> q, k, v;
};

Call make_call(std::size_t n_tokens) {
  std::mt19937 random(12);
  return {draw(n_tokens * kHeads * kGroup * kDim, random), draw(n_tokens * kHeads * kDim, random),
          draw(n_tokens * kHeads * kDim, random)};
}

LayerCache cache_of(std::shared_ptr<const FrozenLayer> frozen, const RowTypes& types) {
  std::mt19937 random(13);
  LayerCache cache;
  cache.frozen = std::move(frozen);
  cache.tail = TailRows({kHeads, kDim}, 1000);
  cache.tail.grow(kTail);
  for (std::size_t h = 0; h < kHeads; ++h)
    for (std::size_t t = 0; t < kTail; ++t) {
      const std::vector<float> row = draw(2 * kDim, random);
      for (std::size_t c = 0; c < kDim; ++c) {
        cache.tail.key_row(h, t)[c] = to_half(row[c]);
        cache.tail.value_row(h, t)[c] = to_half(row[kDim + c]);
      }
    }
  pack_aged_rows(cache, types);
  return cache;
}

// The outputs of a call whose tokens come last, in turns on `n_threads`.
std::vector<float> attend(const ModelConfig& c, LayerCache cache, const Call& call,
                          std::size_t n_tokens, std::size_t n_threads, GateTally& tally) {
  std::vector<LayerCache> layers = {std::move(cache)};
  CacheAttention attention(c, layers, n_threads);
  attention.prepare(0, 1, n_tokens);
  std::vector<float> out(n_tokens * c.n_heads * kDim);
  AttentionCall one{0,          n_tokens, n_tokens, call.q.data(), call.k.data(), call.v.data(),
                    out.data(), 0,        n_threads};
  for (one.thread = 0; one.thread < n_threads; ++one.thread) attention.store(one);
  for (one.thread = 0; one.thread < n_threads; ++one.thread) attention.attend(one);
  for (one.thread = 0; one.thread < n_threads; ++one.thread) attention.finish(one);
  tally = {};
  for (std::size_t h = 0; h < c.n_kv_heads; ++h) tally += attention.gate_tally(0, h);
  attention.reset_gate_tallies();
  EXPECT_EQ(attention.gate_tally(0, 0), GateTally{});
  return out;
}

// One row of keys and values per thing seen.
struct Rows {
  std::vector<double> logits;
  std::vector<const Half*> values;

  void add(const float* query, double scale, const HeadRows& rows) {
    add(query, scale, rows.view());
  }
  void add(const float* query, double scale, const EntryView& rows) {
    for (std::size_t i = 0; i < rows.n; ++i) {
      double product = 0;
      for (std::size_t c = 0; c < kDim; ++c)
        product +=
            static_cast<double>(query[c]) * static_cast<double>(to_float(rows.keys[i * kDim + c]));
      logits.push_back(scale * product +
                       (rows.bias == nullptr ? 0 : static_cast<double>(rows.bias[i])));
      values.push_back(rows.values + i * kDim);
    }
  }
};

class ResidualCacheTest : public testing::TestWithParam<RowType> {
 protected:
  // Largest deviation of a call's outputs from the loops.
  double deviation(std::size_t n_tokens, const SharpnessGate& gate) {
    const RowTypes types{GetParam(), GetParam()};
    const ModelConfig c = config();
    const auto frozen = freeze(types, 40, gate);
    const LayerCache cache = cache_of(frozen, types);
    const Call call = make_call(n_tokens);
    GateTally tally, with_three, counted;
    const std::vector<float> out = attend(c, cache, call, n_tokens, 1, tally);
    EXPECT_TRUE(same_bits(out, attend(c, cache, call, n_tokens, 3, with_three)));
    EXPECT_EQ(tally, with_three);
    double worst = 0, factors = 0;
    for (std::size_t h = 0; h < kHeads; ++h) {
      const HeadRows main(*frozen, h);
      const HeadRows residual = HeadRows::residual(*frozen, h);
      const bool is_aged = !cache.packed_tail.empty();
      const HeadRows aged(is_aged ? cache.packed_tail[h] : PackedList(), nullptr);
      std::vector<Half> own_keys, own_values;
      for (std::size_t t = 0; t < n_tokens; ++t)
        for (std::size_t i = 0; i < kDim; ++i) {
          own_keys.push_back(to_half(call.k[(t * kHeads + h) * kDim + i]));
          own_values.push_back(to_half(call.v[(t * kHeads + h) * kDim + i]));
        }
      for (std::size_t t = 0; t < n_tokens; ++t)
        for (std::size_t g = 0; g < kGroup; ++g) {
          const std::size_t row = (t * kHeads + h) * kGroup + g;
          const float* query = call.q.data() + row * kDim;
          const auto scale = static_cast<double>(c.attn_scale);
          Rows exact;
          exact.add(query, scale, main);
          if (is_aged) exact.add(query, scale, aged);
          exact.add(query, scale, cache.tail.head(h));
          exact.add(query, scale, EntryView{own_keys.data(), own_values.data(), nullptr, t + 1});
          double sum = 0, largest = 0;
          for (const double z : exact.logits) sum += std::exp(z);
          for (const double z : exact.logits) largest = std::max(largest, std::exp(z) / sum);
          const auto factor = static_cast<double>(gate.factor(static_cast<float>(largest)));
          ++counted.n_rows;
          counted.n_open += factor == 1 ? 1 : 0;
          factors += factor;
          n_between_ += factor < 1 && factor > static_cast<double>(gate.least) ? 1 : 0;
          Rows all = exact;
          all.add(query, scale, residual);
          std::vector<double> weights;
          double total = 0;
          for (std::size_t i = 0; i < all.logits.size(); ++i) {
            weights.push_back(std::exp(all.logits[i]) * (i < exact.logits.size() ? 1 : factor));
            total += weights.back();
          }
          for (std::size_t i = 0; i < kDim; ++i) {
            double expected = 0;
            for (std::size_t j = 0; j < weights.size(); ++j)
              expected += weights[j] / total * static_cast<double>(to_float(all.values[j][i]));
            worst = std::max(worst, std::abs(expected - static_cast<double>(out[row * kDim + i])));
          }
        }
    }
    EXPECT_EQ(tally.n_rows, counted.n_rows);
    EXPECT_EQ(tally.n_open, counted.n_open);
    const auto n_rows = static_cast<double>(counted.n_rows);
    EXPECT_NEAR(tally.mean_factor(), factors / n_rows, 1e-3);
    return worst;
  }
  int n_between_ = 0;  // rows on the slope of the gate
};

INSTANTIATE_TEST_SUITE_P(Types, ResidualCacheTest,
                         testing::Values(RowType::kF16, RowType::kQ8_0, RowType::kQ4),
                         [](const auto& info) { return std::string(row_type_name(info.param)); });

// Packed kernels round the other factor too (packed_rows.h); f16 rows are exact.
double tolerance(RowType type) {
  return type == RowType::kF16 ? 2e-5 : type == RowType::kQ8_0 ? 5e-3 : 0.12;
}

TEST_P(ResidualCacheTest, IsOneSoftmaxWithTheResidualMassScaled) {
  for (const SharpnessGate& gate :
       {SharpnessGate{}, SharpnessGate{0.02f, 0.2f, 0.3f}, SharpnessGate{0.01f, 0.05f, 0}})
    for (const std::size_t n_tokens : {std::size_t{1}, std::size_t{5}, std::size_t{40}})
      EXPECT_LT(deviation(n_tokens, gate), tolerance(GetParam())) << n_tokens << " tokens";
  EXPECT_GT(n_between_, 20);
}

TEST_P(ResidualCacheTest, AHeadWithoutResidualEntriesIsUntouchedByItsNeighbours) {
  const RowTypes types{GetParam(), GetParam()};
  const SharpnessGate gate{0.02f, 0.2f, 0.3f};
  const Call call = make_call(3);
  const auto with = freeze(types, 0, gate);
  std::vector<FrozenLayer::Head> heads(kHeads);
  for (std::size_t h = 0; h < kHeads; ++h) {
    heads[h].rows = with->rows(h);
    heads[h].bias.assign(with->head(h).bias, with->head(h).bias + with->n_main(h));
  }
  const auto without = std::make_shared<const FrozenLayer>(KvShape{kHeads, kDim}, std::move(heads));
  GateTally one_head, none;
  const std::vector<float> a = attend(config(), cache_of(with, types), call, 3, 1, one_head);
  const std::vector<float> b = attend(config(), cache_of(without, types), call, 3, 1, none);
  EXPECT_EQ(one_head.n_rows, 3 * kGroup);
  EXPECT_EQ(none, GateTally{});
  const std::size_t width = kGroup * kDim;
  for (std::size_t t = 0; t < 3; ++t) {
    const std::size_t first = t * kHeads * width;
    EXPECT_FALSE(same_bits(a.data() + first, b.data() + first, width));
    EXPECT_TRUE(same_bits(a.data() + first + width, b.data() + first + width, width));
  }
}

// An open gate and one that never closes are the same bits.
TEST_P(ResidualCacheTest, AGateThatIsOffIsLambdaOne) {
  const RowTypes types{GetParam(), GetParam()};
  const Call call = make_call(4);
  const auto out = [&](const SharpnessGate& gate) {
    GateTally tally;
    return attend(config(), cache_of(freeze(types, 40, gate), types), call, 4, 2, tally);
  };
  EXPECT_TRUE(same_bits(out({}), out({0.999f, 1.0f, 0.1f})));
  EXPECT_FALSE(same_bits(out({}), out({0.01f, 0.02f, 0.1f})));
}

}  // namespace
}  // namespace precis::test
