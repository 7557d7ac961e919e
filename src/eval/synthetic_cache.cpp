#include "eval/synthetic_cache.h"

#include <algorithm>
#include <random>

#include "base/error.h"

namespace precis {
namespace {

// Drawing a gigabyte of normal numbers takes minutes, so rows are windows into a table of them. A
// million values are far more than the distinct offsets that one head sees twice.
constexpr std::size_t kTableSize = std::size_t{1} << 20;

class RandomRows {
 public:
  explicit RandomRows(std::uint64_t seed) : draw_(seed), table_(kTableSize) {
    std::normal_distribution<float> normal;
    for (float& x : table_) x = normal(draw_);
  }

  PackedList list(std::size_t n, std::size_t width, const RowTypes& types) {
    PackedList rows(types, width);
    rows.reserve(n);
    // Whole groups are windows too.
    const std::size_t group = kGroupEntries * width;
    for (std::size_t i = 0; i < n; i += kGroupEntries) {
      const float* keys = table_.data() + draw_() % (kTableSize - group);
      const float* values = table_.data() + draw_() % (kTableSize - group);
      rows.append(keys, values, std::min(kGroupEntries, n - i));
    }
    return rows;
  }
  // In (0, 1): biases are logarithms of mass ratios, above 0 and rarely above 1.
  float bias() { return 0.5f * std::generate_canonical<float, 24>(draw_) + 1e-3f; }

 private:
  std::mt19937_64 draw_;
  std::vector<float> table_;
};

}  // namespace

Condenser condenser_for(const Engine& engine, const CondenseRequest& request,
                        std::size_t n_tokens) {
  const ModelConfig& c = engine.config();
  const std::vector<LayerShape> shapes = engine.compressible_layers();
  const std::size_t window_rows = (c.n_layers - shapes.size()) * std::min(n_tokens, c.window);
  return Condenser(request.method, request.budget, shapes, n_tokens, request.seed,
                   window_rows * c.kv_bytes_per_token() / c.n_layers, request.rows);
}

std::vector<std::shared_ptr<const FrozenLayer>> synthetic_layers(const Engine& engine,
                                                                 const CondenseRequest& request,
                                                                 std::size_t n_tokens,
                                                                 std::size_t n_distinct) {
  const ModelConfig& c = engine.config();
  const std::vector<LayerShape> shapes = engine.compressible_layers();
  const Condenser condenser = condenser_for(engine, request, n_tokens);
  const std::size_t n_entries = condenser.entries_per_head();
  const bool whole = condenser.keeps_everything();
  const bool biased =
      !whole && request.method.compensator != nullptr && request.method.compensator->uses_bias();
  RandomRows random(request.seed);
  std::vector<std::shared_ptr<const FrozenLayer>> layers(c.n_layers);
  std::vector<std::shared_ptr<const FrozenLayer>> distinct;
  std::size_t next = 0;
  for (const std::size_t il : engine.compressible_indices()) {
    const std::size_t i = next++;
    if (n_distinct > 0 && i >= n_distinct) {
      layers[il] = distinct[i % n_distinct];
      continue;
    }
    std::vector<FrozenLayer::Head> heads(c.n_kv_heads);
    for (FrozenLayer::Head& head : heads) {
      head.rows = random.list(n_entries, c.head_dim, request.rows);
      for (std::size_t e = 0; e < n_entries && !whole; ++e) {
        head.positions.push_back(static_cast<std::int32_t>(e * n_tokens / n_entries));
        if (biased) head.bias.push_back(random.bias());
      }
    }
    layers[il] = std::make_shared<const FrozenLayer>(shapes[i].kv, std::move(heads));
    distinct.push_back(layers[il]);
  }
  return layers;
}

std::size_t synthetic_position(const ModelConfig& config, std::size_t n_more) {
  if (n_more + 1 > config.n_ctx_train)
    throw Error(ErrorCode::kInvalidArgument,
                concat("decoding ", n_more, " tokens after a synthetic cache needs more than the ",
                       "model's context of ", config.n_ctx_train));
  return std::max<std::size_t>(1, std::min(config.n_ctx_train / 2, config.n_ctx_train - n_more));
}

}  // namespace precis
