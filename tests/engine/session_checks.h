// What the session tests share: requests from text, and comparison of caches and logits bit for
// bit.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/session.h"
#include "methods/registry.h"
#include "support/test_models.h"

namespace precis::test {

inline CondenseRequest request(const std::string& spec, const std::string& keep,
                               std::uint64_t seed = 7) {
  return {builtin_methods().parse(spec), Budget::parse(keep), seed, {}};
}

// A tiny model, the test's parameter, a prompt and what follows it.
class TinySession : public testing::TestWithParam<const char*> {
 protected:
  TinySession(std::size_t n_prompt, std::size_t n_more) : n_prompt_(n_prompt), n_more_(n_more) {}
  void SetUp() override {
    engine_ = load(1);
    const auto all = random_tokens(n_prompt_ + n_more_, engine_->config().n_vocab, 3);
    const auto middle = all.begin() + static_cast<std::ptrdiff_t>(n_prompt_);
    prompt_.assign(all.begin(), middle);
    more_.assign(middle, all.end());
  }
  // The same product of weights in every engine: which one is faster may be measured differently.
  static std::shared_ptr<const Engine> load(std::size_t n_threads) {
    return Engine::load(tiny_model(GetParam()),
                        {.n_threads = n_threads, .matmul = MatmulMode::kSgemm});
  }
  Session condensed(const CondenseRequest& req) const {
    Session session(engine_);
    session.condense(prompt_, req);
    return session;
  }

  const std::size_t n_prompt_, n_more_;
  std::shared_ptr<const Engine> engine_;
  std::vector<Token> prompt_, more_;
};

// A preset for each way through the engine: nothing condensed, no observation, the last queries,
// all queries, blocks and biases, heads and layers of different sizes, layers that wait for later
// ones, biases that do, the prompt repeated, residual entries behind a gate, fitted values; each
// keeps the last tokens. What every preset must keep to, its contract
// (tests/methods/contract_test.cpp) says without a model.
inline std::vector<std::string> engine_presets() {
  return {"full",
          "streaming",
          "snapkv",
          "h2o",
          "selkv",
          "adakv",
          "pyramidkv",
          "criticalkv",
          "selkv(mode=global) layers=global",
          "kvzip(recent=16)",
          "reskv(validate=off,parts=0.5,gate=linear)",
          "match"};
}

inline std::vector<float> copy(std::span<const float> values) {
  return {values.begin(), values.end()};
}

template <class T>
bool same_bits(const T* a, const T* b, std::size_t n) {
  if (n == 0) return true;
  if (a == nullptr || b == nullptr) return a == b;
  return std::memcmp(a, b, n * sizeof(T)) == 0;
}

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && same_bits(a.data(), b.data(), a.size());
}

// Empty if equal, else what differs first.
inline std::string difference(const FrozenLayer& a, const FrozenLayer& b) {
  if (!(a.shape() == b.shape())) return "shape";
  for (std::size_t head = 0; head < a.shape().n_kv_heads; ++head) {
    const PackedView x = a.head(head), y = b.head(head);
    const std::string where = " of head " + std::to_string(head);
    if (x.n != y.n) return "number of entries" + where;
    if (!(x.types == y.types)) return "row types" + where;
    const PackedView p = a.residual(head), q = b.residual(head);
    if (p.n != q.n) return "residual entries" + where;
    if (!(a.gate(head) == b.gate(head))) return "gate" + where;
    const std::size_t dim = a.shape().head_dim;
    if (!same_bits(x.keys, y.keys, key_bytes(x.types.keys, dim, x.n))) return "keys" + where;
    if (!same_bits(x.values, y.values, value_bytes(x.types.values, dim, x.n)))
      return "values" + where;
    if (!same_bits(x.bias, y.bias, x.n)) return "bias" + where;
    if (!same_bits(p.keys, q.keys, key_bytes(p.types.keys, dim, p.n)) ||
        !same_bits(p.values, q.values, value_bytes(p.types.values, dim, p.n)) ||
        !same_bits(p.bias, q.bias, p.n))
      return "residual rows" + where;
    for (std::size_t i = 0; i < x.n; ++i) {
      if (a.position(head, i) != b.position(head, i)) return "positions" + where;
    }
  }
  return "";
}

inline std::string difference(const TailRows& a, const TailRows& b) {
  if (!(a.shape() == b.shape())) return "shape of the tail";
  if (a.size() != b.size() || a.first_position() != b.first_position()) return "rows of the tail";
  for (std::size_t head = 0; head < a.shape().n_kv_heads; ++head) {
    const EntryView x = a.head(head), y = b.head(head);
    if (!same_bits(x.keys, y.keys, x.n * a.shape().head_dim)) return "keys of the tail";
    if (!same_bits(x.values, y.values, x.n * a.shape().head_dim)) return "values of the tail";
  }
  return "";
}

// Whole caches, layer by layer. Empty if equal.
inline std::string difference(const Session& a, const Session& b) {
  if (a.next_position() != b.next_position()) return "next position";
  if (a.kv_bytes() != b.kv_bytes()) return "bytes";
  for (std::size_t il = 0; il < a.engine()->config().n_layers; ++il) {
    const FrozenLayer *x = a.frozen_layer(il), *y = b.frozen_layer(il);
    std::string found;
    if ((x == nullptr) != (y == nullptr))
      return "layer " + std::to_string(il) + ": only one frozen";
    if (x != nullptr) found = difference(*x, *y);
    if (found.empty()) found = difference(a.tail(il), b.tail(il));
    if (!found.empty()) return "layer " + std::to_string(il) + ": " + found;
  }
  return "";
}

// Logits of a few more tokens, in one call of several tokens and in calls of one.
inline std::vector<float> continue_with(Session& session, std::span<const Token> tokens) {
  const std::size_t half = tokens.size() / 2;
  std::vector<float> logits = copy(session.extend(tokens.first(half), half));
  for (const Token& token : tokens.subspan(half)) {
    const auto row = session.extend({&token, 1});
    logits.insert(logits.end(), row.begin(), row.end());
  }
  return logits;
}

// Runs f and returns the message of the Error of that code; fails if there is none.
template <class F>
std::string error_of(ErrorCode code, F&& f) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no Error was thrown";
  return "";
}

}  // namespace precis::test
