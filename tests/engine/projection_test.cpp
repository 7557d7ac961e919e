// What the engine tells methods of a layer beside its rows: how keys were turned, and W_O.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "compress/output_projection.h"
#include "engine/session_checks.h"
#include "kernels/rope.h"
#include "model/gguf_file.h"

namespace precis::test {
namespace {

class LayerFacts : public testing::TestWithParam<const char*> {
 protected:
  std::shared_ptr<const Engine> engine_ =
      Engine::load(tiny_model(GetParam()), {.n_threads = 1, .matmul = MatmulMode::kSgemm});
};
INSTANTIATE_TEST_SUITE_P(Models, LayerFacts,
                         testing::Values("llama", "llama-hd80", "llama-mha", "qwen2", "qwen2-yarn",
                                         "qwen3", "gemma3"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// The keys of the first layer depend on a token and its position alone.
TEST_P(LayerFacts, KeysOfOneTokenAreTurnsOfEachOther) {
  const ModelConfig& c = engine_->config();
  const std::vector<Token> tokens(c.window > 0 ? c.window : 300, 7);
  Session session(engine_);
  session.prefill(tokens);
  const Rope rope = engine_->model().rope(0);
  RopeTurn turn(rope);
  const EntryView rows = session.tail(0).head(0);
  std::vector<float> first(c.head_dim);
  for (std::size_t t = 0; t < tokens.size(); t += 5) {
    for (std::size_t i = 0; i < c.head_dim; ++i) first[i] = to_float(rows.keys[i]);
    turn.set_delta(static_cast<std::int64_t>(t));
    turn.apply(first.data());
    double error = 0, size = 0;
    for (std::size_t i = 0; i < c.head_dim; ++i) {
      const double wanted = static_cast<double>(to_float(rows.keys[t * c.head_dim + i]));
      error += std::pow(static_cast<double>(first[i]) - wanted, 2);
      size += wanted * wanted;
    }
    // Both are rounded to f16.
    EXPECT_LE(std::sqrt(error / size), 1e-3) << "position " << t;
  }
}

TEST_P(LayerFacts, OutputNormsAreThoseOfTheFilesWeights) {
  const ModelConfig& c = engine_->config();
  const std::vector<Token> tokens = random_tokens(140, c.n_vocab, 3);
  Session session(engine_);
  session.prefill(std::span(tokens).first(100));
  Session fork = session.fork();
  fork.prefill(std::span(tokens).subspan(100));
  const GgufFile file(tiny_model(GetParam()));
  const auto indices = engine_->compressible_indices();
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const auto* tensor =
        file.find_tensor("blk." + std::to_string(indices[i]) + ".attn_output.weight");
    ASSERT_NE(tensor, nullptr);
    ASSERT_EQ(tensor->type, GGML_TYPE_F32);
    const auto* weights = static_cast<const float*>(tensor->data);
    const LayerShape& shape = engine_->compressible_layers()[i];
    const TailRows& tail = fork.tail(indices[i]);
    for (std::size_t h = 0; h < c.n_kv_heads; ++h) {
      HeadView head;
      head.head = h;
      head.n_tokens = tail.size();
      head.head_dim = c.head_dim;
      head.group = shape.group;
      head.entries = tail.head(h);
      head.output = shape.output;
      const std::span<const float> norms = head.output_norms();
      for (std::size_t g = 0; g < shape.group; ++g)
        for (std::size_t t = 0; t < tail.size(); t += 7) {
          double wanted = 0;
          for (std::size_t r = 0; r < c.n_embd; ++r) {
            double sum = 0;
            for (std::size_t k = 0; k < c.head_dim; ++k)
              sum += static_cast<double>(weights[r * c.n_heads * c.head_dim +
                                                 (h * shape.group + g) * c.head_dim + k]) *
                     static_cast<double>(to_float(head.entries.values[t * c.head_dim + k]));
            wanted += std::abs(sum);
          }
          EXPECT_NEAR(static_cast<double>(norms[g * tail.size() + t]), wanted, 1e-5 * wanted);
        }
    }
  }
}

// What is computed from W_O and RoPE has the same bits in a layer-major prefill, later, in a prompt
// in parts and with other numbers of threads.
TEST_P(LayerFacts, MethodsThatReadThemDoNotDependOnTheWay) {
  const auto three =
      Engine::load(tiny_model(GetParam()), {.n_threads = 3, .matmul = MatmulMode::kSgemm});
  const std::vector<Token> tokens = random_tokens(150, engine_->config().n_vocab, 3);
  for (const char* spec : {"criticaladakv", "expected(size=output)", "restkv"}) {
    SCOPED_TRACE(spec);
    const CondenseRequest req = request(spec, "50%");
    const Observation observe = req.method.observation(tokens.size());
    Session layer_major(engine_), later(engine_), threads(three);
    layer_major.condense(tokens, req);
    threads.condense(tokens, req);
    later.prefill(tokens, observe);
    Session fork = later.fork();
    later.compress(req);
    fork.compress(req);
    EXPECT_EQ(difference(layer_major, later), "");
    EXPECT_EQ(difference(layer_major, fork), "");
    EXPECT_EQ(difference(layer_major, threads), "");
    Session parts(engine_), again(engine_);
    for (Session* session : {&parts, &again}) {
      session->prefill(std::span(tokens).first(90), observe);
      Session question = session->fork();
      question.prefill(std::span(tokens).subspan(90), observe);
      question.compress(req);
      session->prefill(std::span(tokens).subspan(90), observe);
      session->compress(req);
      EXPECT_EQ(difference(*session, question), "");
    }
    EXPECT_EQ(difference(parts, again), "");
  }
}

}  // namespace
}  // namespace precis::test
