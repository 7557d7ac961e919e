// Sessions that go on from a frozen cache made elsewhere.
#include <gtest/gtest.h>

#include "engine/session_checks.h"

namespace precis::test {
namespace {

constexpr std::size_t kPrompt = 200;
constexpr std::size_t kMore = 20;

using Layers = std::vector<std::shared_ptr<const FrozenLayer>>;

Layers frozen_of(const Session& session) {
  Layers layers;
  for (std::size_t il = 0; il < session.engine()->config().n_layers; ++il) {
    const FrozenLayer* layer = session.frozen_layer(il);
    layers.push_back(layer ? std::make_shared<const FrozenLayer>(*layer) : nullptr);
  }
  return layers;
}

std::shared_ptr<const Engine> load(const char* name) {
  return Engine::load(tiny_model(name), {.n_threads = 1});
}

// A layer of another shape, or of more rows than the model's context.
std::shared_ptr<const FrozenLayer> layer_of(KvShape shape, std::size_t n) {
  std::vector<FrozenLayer::Head> heads(shape.n_kv_heads);
  for (FrozenLayer::Head& head : heads) {
    const std::vector<Half> rows(n * shape.head_dim, to_half(0.25f));
    head.rows = PackedList::from_rows({}, shape.head_dim, {rows.data(), rows.data(), nullptr, n});
  }
  return std::make_shared<const FrozenLayer>(shape, std::move(heads));
}

TEST(SessionRestore, GoesOnAsTheSessionThatMadeTheCache) {
  for (const char* name : {"llama", "qwen2"}) {  // without sliding layers
    const auto engine = load(name);
    const auto tokens = random_tokens(kPrompt + kMore, engine->config().n_vocab, 11);
    const std::span<const Token> all(tokens);
    for (const char* spec : {"full", "selkv", "streaming"}) {
      Session original(engine);
      original.condense(all.first(kPrompt), request(spec, "30%"));
      Session restored(engine);
      restored.restore(frozen_of(original), kPrompt);
      EXPECT_EQ(difference(original, restored), "") << name << " " << spec;
      EXPECT_TRUE(restored.last_logits().empty());
      EXPECT_TRUE(same_bits(continue_with(original, all.subspan(kPrompt)),
                            continue_with(restored, all.subspan(kPrompt))))
          << name << " " << spec;
      EXPECT_EQ(restored.next_position(), kPrompt + kMore);
    }
  }
}

TEST(SessionRestore, EntriesMayBeMoreThanTheContextHolds) {
  const auto engine = load("llama");
  const ModelConfig& c = engine->config();
  const std::size_t n = c.n_ctx_train + 500;
  const Layers layers(c.n_layers, layer_of({c.n_kv_heads, c.head_dim}, n));
  Session session(engine);
  session.restore(layers, c.n_ctx_train / 2);
  EXPECT_EQ(session.kv_bytes(), n * c.kv_bytes_per_token());
  const auto tokens = random_tokens(4, c.n_vocab, 2);
  for (const float logit : session.extend(tokens, 4)) ASSERT_TRUE(std::isfinite(logit));
  EXPECT_EQ(session.next_position(), c.n_ctx_train / 2 + 4);
}

TEST(SessionRestore, SlidingLayersStartEmpty) {
  const auto engine = load("gemma3");
  const ModelConfig& c = engine->config();
  const auto tokens = random_tokens(kPrompt, c.n_vocab, 4);
  Session original(engine);
  original.condense(tokens, request("full", "100%"));
  Session restored(engine);
  restored.restore(frozen_of(original), kPrompt);
  restored.extend(std::span(tokens).first(3));
  for (std::size_t il = 0; il < c.n_layers; ++il) {
    EXPECT_EQ(restored.tail(il).size(), 3u) << il;
    EXPECT_EQ(restored.tail(il).first_position(), static_cast<std::int32_t>(kPrompt)) << il;
  }
}

TEST(SessionRestore, RefusesWhatDoesNotFit) {
  const auto engine = load("llama");
  const ModelConfig& c = engine->config();
  const KvShape shape{c.n_kv_heads, c.head_dim};
  const Layers good(c.n_layers, layer_of(shape, 8));
  const auto refused = [&](Layers layers, std::size_t position, const std::string& word) {
    Session session(engine);
    const std::string message = error_of(ErrorCode::kInvalidArgument,
                                         [&] { session.restore(std::move(layers), position); });
    EXPECT_NE(message.find(word), std::string::npos) << message;
    EXPECT_EQ(session.next_position(), 0u);
    EXPECT_EQ(session.kv_bytes(), 0u);
  };
  Layers layers = good;
  layers.pop_back();
  refused(layers, 8, std::to_string(c.n_layers - 1));
  layers = good;
  layers[1] = nullptr;
  refused(layers, 8, "layer 1");
  layers = good;
  layers[2] = layer_of({shape.n_kv_heads, shape.head_dim * 2}, 8);
  refused(layers, 8, std::to_string(shape.head_dim * 2));
  layers[2] = layer_of({shape.n_kv_heads + 1, shape.head_dim}, 8);
  refused(layers, 8, std::to_string(shape.n_kv_heads + 1));
  refused(good, 0, "position 0");
  refused(good, c.n_ctx_train + 1, std::to_string(c.n_ctx_train));

  Session used(engine);
  used.extend(random_tokens(5, c.n_vocab, 1));
  EXPECT_NE(error_of(ErrorCode::kInvalidArgument, [&] { used.restore(good, 8); }).find("5 tokens"),
            std::string::npos);

  const auto sliding = load("gemma3");
  Session mixed(sliding);
  const ModelConfig& g = sliding->config();
  const Layers all(g.n_layers, layer_of({g.n_kv_heads, g.head_dim}, 8));
  EXPECT_NE(error_of(ErrorCode::kInvalidArgument, [&] { mixed.restore(all, 8); }).find("sliding"),
            std::string::npos);
}

}  // namespace
}  // namespace precis::test
