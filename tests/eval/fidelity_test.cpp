// Fidelity on tiny models: the full cache is at distance 0 from itself, figures agree with a plain
// run of the same sessions, and shards and resumed runs give the same rows.
#include "eval/fidelity.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "eval/divergence.h"
#include "eval/output_error.h"
#include "eval/suite.h"
#include "methods/registry.h"
#include "support/test_models.h"

namespace precis::test {
namespace {

EvalMethod method(const std::string& spec, const std::string& keep = "25%", RowTypes rows = {}) {
  return {builtin_methods().parse(spec), Budget::parse(keep), spec, rows};
}

std::string words(std::size_t n) {
  std::string text;
  for (std::size_t i = 0; i < n; ++i) text += "word" + std::to_string(i * i % 97) + " ";
  return text;
}

class Fidelity : public testing::Test {
 protected:
  void SetUp() override {
    engine_ =
        Engine::load(tiny_model("llama-hd64"), {.n_threads = 1, .matmul = MatmulMode::kSgemm});
    wanted_.texts = {{"a.txt", words(400)}, {"b.txt", words(300)}, {"short.txt", "too short"}};
    wanted_.n_prefix = 160;
    wanted_.n_continuation = 24;
    wanted_.n_passages = 3;
    options_.methods = {method("full"), method("snapkv"), method("selkv", "50%"),
                        method("selkv(block=16)"),
                        method("snapkv", "25%", {RowType::kQ8_0, RowType::kQ8_0})};
  }
  std::shared_ptr<const Engine> engine_;
  FidelityOptions wanted_;
  EvalOptions options_;
};

const FidelityRow& row(const EvalRows& rows, std::size_t i) {
  return std::get<FidelityRow>(rows.rows.at(i));
}

TEST_F(Fidelity, FullIsAtDistanceZeroAndOthersAreNot) {
  const Suite suite = fidelity_suite(engine_, wanted_);
  const EvalRows rows = suite.run(0, options_);
  ASSERT_EQ(rows.rows.size(), options_.methods.size());
  ASSERT_EQ(rows.times.size(), options_.methods.size());
  const FidelityRow& full = row(rows, 0);
  EXPECT_EQ(full.mean_kl, 0);
  EXPECT_EQ(full.p99_kl, 0);
  EXPECT_EQ(full.same_top, 1);
  EXPECT_EQ(full.log_likelihood, full.log_likelihood_full);
  EXPECT_EQ(full.kv_bytes, full.kv_bytes_full);
  EXPECT_EQ(full.key.keep, "100%");
  const ModelConfig& c = engine_->config();
  for (std::size_t i = 0; i < rows.rows.size(); ++i) {
    const FidelityRow& r = row(rows, i);
    ASSERT_EQ(r.output_error.size(), c.n_layers);
    for (const auto& heads : r.output_error) {
      ASSERT_EQ(heads.size(), c.n_kv_heads);
      // Both sides of `full` round the same rows; prefills of another length may round queries
      // otherwise.
      for (const double error : heads) EXPECT_LE(error, i == 0 ? 1e-4 : 2.0);
    }
    EXPECT_EQ(r.n_context, 160u);
    EXPECT_EQ(r.n_continuation, 24u);
    EXPECT_EQ(rows.times[i].key, r.key);
    if (i == 0) continue;
    EXPECT_GT(r.mean_kl, 0) << i;
    EXPECT_GE(r.p99_kl, r.mean_kl) << i;
    EXPECT_LT(r.kv_bytes, r.kv_bytes_full) << i;
    EXPECT_GT(r.output_error[0][0], 1e-3) << i;
    EXPECT_EQ(r.log_likelihood_full, full.log_likelihood_full);
  }
}

// The same sessions, driven by hand through condense and one extend for the whole continuation.
TEST_F(Fidelity, FiguresAreThoseOfAPlainRun) {
  const Suite suite = fidelity_suite(engine_, wanted_);
  options_.methods = {method("snapkv")};
  const EvalRows rows = suite.run(1, options_);  // first passage of b.txt
  const bool bos = engine_->tokenizer().adds_bos();
  std::vector<Token> tokens = engine_->tokenizer().tokenize("", bos, false);
  for (const Token t : engine_->tokenizer().tokenize(words(300), false, false)) tokens.push_back(t);
  const std::span<const Token> text(tokens);
  const auto logits_of = [&](const EvalMethod& m) {
    Session session(engine_);
    session.condense(text.first(160), {m.method, m.budget, 0, m.rows});
    const auto logits = session.extend(text.subspan(160, 24), 24);
    return std::vector<float>(logits.begin(), logits.end());
  };
  const std::vector<float> full = logits_of(method("full"));
  const std::vector<float> kept = logits_of(method("snapkv"));
  const std::size_t n_vocab = engine_->config().n_vocab;
  double kl = 0;
  double likelihood = 0;
  for (std::size_t t = 0; t < 23; ++t) {
    const auto a = std::span(full).subspan(t * n_vocab, n_vocab);
    const auto b = std::span(kept).subspan(t * n_vocab, n_vocab);
    kl += compare_logits(a, b).kl / 23;
    likelihood += log_probability(b, static_cast<std::size_t>(tokens[160 + t + 1])) / 23;
  }
  EXPECT_EQ(row(rows, 0).key.task, "b.txt");
  EXPECT_NEAR(row(rows, 0).mean_kl, kl, 1e-4 * kl + 1e-9);
  EXPECT_NEAR(row(rows, 0).log_likelihood, likelihood, 1e-4);
}

// Attention by definition, in double, over the rows that each side sees.
TEST_F(Fidelity, OutputErrorIsThatOfAPlainLoop) {
  const std::vector<Token> all = engine_->tokenizer().tokenize(words(300), false, false);
  const std::span<const Token> text(all);
  OutputErrorProbe probe(engine_, text.first(100), text.subspan(100, 8), {});
  Session dense(engine_);
  dense.prefill(text.first(108), {8, 0});
  Session condensed(engine_);
  const EvalMethod m = method("snapkv", "40%");
  condensed.condense(text.first(100), {m.method, m.budget, 0, m.rows});
  const auto errors = probe.measure(condensed, nullptr);
  const ModelConfig& c = engine_->config();
  for (std::size_t l = 0; l < c.n_layers; ++l) {
    for (std::size_t h = 0; h < c.n_kv_heads; ++h) {
      const FrozenLayer& frozen = *condensed.frozen_layer(l);
      const EntryView rows = dense.tail(l).head(h);
      const std::size_t d = c.head_dim;
      std::vector<float> keys(frozen.n_entries(h) * d);
      std::vector<float> values(keys.size());
      frozen.rows(h).unpack(0, frozen.n_entries(h), keys.data(), values.data());
      double sum = 0;
      for (std::size_t t = 0; t < 8; ++t) {
        for (std::size_t j = 0; j < c.group(); ++j) {
          const float* q = dense.observed(l).queries.data() + ((h * c.group() + j) * 8 + t) * d;
          const auto attend = [&](bool use_frozen) {
            std::vector<double> out(d);
            double mass = 0;
            const auto add = [&](const auto& key, const auto& value) {
              double dot = 0;
              for (std::size_t i = 0; i < d; ++i)
                dot += static_cast<double>(q[i]) * static_cast<double>(key(i));
              const double p = std::exp(dot * static_cast<double>(c.attn_scale));
              mass += p;
              for (std::size_t i = 0; i < d; ++i) out[i] += p * static_cast<double>(value(i));
            };
            for (std::size_t e = 0; use_frozen && e < frozen.n_entries(h); ++e)
              add([&](std::size_t i) { return keys[e * d + i]; },
                  [&](std::size_t i) { return values[e * d + i]; });
            for (std::size_t r = use_frozen ? 100 : 0; r <= 100 + t; ++r)
              add([&](std::size_t i) { return to_float(rows.keys[r * d + i]); },
                  [&](std::size_t i) { return to_float(rows.values[r * d + i]); });
            for (double& x : out) x /= mass;
            return out;
          };
          const std::vector<double> full = attend(false);
          const std::vector<double> kept = attend(true);
          double error = 0;
          double norm = 0;
          for (std::size_t i = 0; i < d; ++i) {
            error += (kept[i] - full[i]) * (kept[i] - full[i]);
            norm += full[i] * full[i];
          }
          sum += error / norm;
        }
      }
      const double expected = std::sqrt(sum / static_cast<double>(8 * c.group()));
      EXPECT_NEAR(errors[l][h], expected, 1e-3 * expected) << l << " " << h;
    }
  }
}

TEST_F(Fidelity, ShardsDealPassagesInTurn) {
  const Suite suite = fidelity_suite(engine_, wanted_);
  ASSERT_EQ(suite.left_out.size(), 1u);
  EXPECT_EQ(suite.left_out[0].substr(0, 10), "short.txt:");
  ASSERT_GE(suite.units.size(), 4u);
  options_.methods = {method("snapkv")};
  for (std::size_t n = 1; n <= 3; ++n)
    for (std::size_t s = 1; s <= n; ++s) {
      const Suite shard = shard_of(suite, s, n);
      for (std::size_t i = 0; i < shard.units.size(); ++i)
        EXPECT_EQ(shard.units[i], suite.units[i * n + s - 1]);
    }
  const Suite second = shard_of(suite, 2, 2);
  EXPECT_EQ(print_row(second.run(1, options_).rows[0]), print_row(suite.run(3, options_).rows[0]));
  EXPECT_THROW(shard_of(suite, 0, 2), Error);
  EXPECT_THROW(shard_of(suite, 3, 2), Error);
}

TEST_F(Fidelity, PassagesFollowOneAnother) {
  const Suite suite = fidelity_suite(engine_, wanted_);
  for (std::size_t i = 0; i < suite.units.size(); ++i) {
    EXPECT_EQ(suite.units[i].length, 160u);
    if (i > 0) {
      EXPECT_GE(suite.units[i].index, suite.units[i - 1].index);
    }
    EXPECT_EQ(suite.count(i, options_), options_.methods.size());
  }
  // Rows of two texts with one name could not be told apart, nor could a resumed run.
  wanted_.texts.push_back(wanted_.texts[0]);
  EXPECT_THROW(fidelity_suite(engine_, wanted_), Error);
  wanted_.texts = {{"short.txt", "too short"}};
  EXPECT_THROW(fidelity_suite(engine_, wanted_), Error);
  wanted_.n_prefix = engine_->config().n_ctx_train;
  EXPECT_THROW(fidelity_suite(engine_, wanted_), Error);
}

// Layers with a sliding window are never condensed and have no row in the table of errors.
TEST_F(Fidelity, SlidingLayersAreLeftOutOfTheErrors) {
  engine_ = Engine::load(tiny_model("gemma3"), {.n_threads = 1, .matmul = MatmulMode::kSgemm});
  options_.methods = {method("full"), method("snapkv", "40%")};
  const EvalRows rows = fidelity_suite(engine_, wanted_).run(0, options_);
  const std::size_t n = engine_->compressible_indices().size();
  ASSERT_LT(n, engine_->config().n_layers);
  for (std::size_t i = 0; i < 2; ++i) {
    ASSERT_EQ(row(rows, i).output_error.size(), n);
    for (const auto& heads : row(rows, i).output_error)
      for (const double error : heads) EXPECT_EQ(error < 1e-4, i == 0) << error;
  }
  EXPECT_EQ(row(rows, 0).mean_kl, 0);
  EXPECT_GT(row(rows, 1).mean_kl, 0);
}

TEST(Quantile, IsTheNearestRank) {
  EXPECT_EQ(nearest_rank({}, 0.5), 0);
  EXPECT_EQ(nearest_rank({3}, 0.99), 3);
  EXPECT_EQ(nearest_rank({4, 1, 3, 2}, 0.5), 2);
  EXPECT_EQ(nearest_rank({4, 1, 3, 2}, 0.51), 3);
  EXPECT_EQ(nearest_rank({4, 1, 3, 2}, 1.0), 4);
  EXPECT_EQ(nearest_rank({4, 1, 3, 2}, 0.0), 1);
}

TEST(JointObservation, ServesEveryMethod) {
  const auto serves_all = [](const std::vector<EvalMethod>& methods, std::size_t n) {
    const Observation joint = joint_observation(methods, n);
    ObservedQueries kept;
    kept.n_tokens = std::min(joint.n_queries, n);
    kept.block = std::min(joint.block, n);
    for (const EvalMethod& m : methods)
      EXPECT_TRUE(kept.serves(m.method.observation(n), n)) << m.label << " of " << n;
  };
  for (const std::size_t n : {8u, 100u, 5000u}) {
    serves_all({method("full"), method("snapkv"), method("selkv")}, n);
    serves_all({method("selkv"), method("selkv(block=64)")}, n);
    serves_all({method("selkv(block=64)"), method("snapkv"), method("selkv(block=16)")}, n);
  }
  EXPECT_TRUE(joint_observation({method("full")}, 100).none());
}

}  // namespace
}  // namespace precis::test
