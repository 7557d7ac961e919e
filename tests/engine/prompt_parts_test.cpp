// A prompt that is read in parts is the prompt that is read at once: rows, what methods see of it,
// logits; and a part that is refused or cancelled leaves the session as it was.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>

#include "engine/session_checks.h"
#include "oracle/parity.h"

namespace precis::test {
namespace {

class PromptParts : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    engine_ = Engine::load(tiny_model(GetParam()), {.n_threads = 1, .matmul = MatmulMode::kSgemm});
    tokens_ = random_tokens(engine_->config().n_ctx_train + 8, engine_->config().n_vocab, 11);
  }
  std::span<const Token> part(std::size_t first, std::size_t end) const {
    return std::span(tokens_).subspan(first, end - first);
  }
  Session read(std::span<const std::size_t> ends, const Observation& observe) const {
    Session session(engine_);
    std::size_t first = 0;
    for (const std::size_t end : ends) {
      session.prefill(part(first, end), observe);
      first = end;
    }
    return session;
  }

  std::shared_ptr<const Engine> engine_;
  std::vector<Token> tokens_;
};

INSTANTIATE_TEST_SUITE_P(Models, PromptParts,
                         testing::Values("llama", "llama-hd64", "qwen2", "gemma3"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// Largest difference relative to the largest value; both have the same infinities.
double distance(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return INFINITY;
  double worst = 0;
  double scale = 1e-9;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isinf(a[i]) || std::isinf(b[i])) {
      if (a[i] != b[i]) return INFINITY;
      continue;
    }
    worst = std::max(worst, std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
    scale = std::max(scale, std::fabs(static_cast<double>(b[i])));
  }
  return worst / scale;
}

// Sums that are cut otherwise differ in their last bits, and now and then a key or value is then
// rounded to the next f16, which is 5e-4 of it. A row out of place would differ by its whole size.
constexpr double kRounding = 2e-3;

TEST_P(PromptParts, MethodsSeeOnePrompt) {
  for (const Observation& observe :
       {Observation{}, Observation{32, 0}, Observation{SIZE_MAX, 0}, Observation{20, 32}}) {
    const std::size_t whole[] = {200};
    const Session once = read(whole, observe);
    for (const std::vector<std::size_t>& ends :
         {std::vector<std::size_t>{199, 200}, {150, 200}, {40, 47, 130, 200}, {190, 195, 200}}) {
      const Session parts = read(ends, observe);
      ASSERT_EQ(parts.next_position(), 200u);
      EXPECT_LE(distance(parts.last_logits(), once.last_logits()), kRounding);
      for (const std::size_t il : engine_->compressible_indices()) {
        const ObservedQueries& a = parts.observed(il);
        const ObservedQueries& b = once.observed(il);
        EXPECT_EQ(a.n_tokens, b.n_tokens);
        EXPECT_EQ(a.block, b.block);
        EXPECT_LE(distance(a.queries, b.queries), kRounding) << il;
        EXPECT_LE(distance(a.log_sum_exp, b.log_sum_exp), kRounding) << il;
        EXPECT_LE(distance(a.block_attention, b.block_attention), kRounding) << il;
        EXPECT_EQ(parts.tail(il).size(), 200u);
        EXPECT_EQ(parts.tail(il).first_position(), 0);
      }
    }
  }
}

TEST_P(PromptParts, EveryMethodCondensesThem) {
  const std::vector<Token> more = random_tokens(8, engine_->config().n_vocab, 5);
  for (const std::string& spec : engine_presets()) {
    const CondenseRequest req = request(spec, "50%");
    const Observation observe = req.method.observation(200);
    // Each part is repeated on its own then (repeat_pass_test.cpp).
    if (observe.repeat_chunk > 0) continue;
    const std::size_t whole[] = {200};
    const std::size_t ends[] = {120, 200};
    Session once = read(whole, observe);
    Session parts = read(ends, observe);
    const CompressionReport a = parts.compress(req);
    const CompressionReport b = once.compress(req);
    EXPECT_EQ(a.entries, b.entries) << spec;
    EXPECT_LE(nmse(continue_with(parts, more), continue_with(once, more)), 1e-6) << spec;
  }
}

TEST_P(PromptParts, ForksReadDifferentQuestions) {
  const Observation observe{32, 32};
  const std::size_t document[] = {100};
  const Session dense = read(document, observe);
  for (const std::size_t first : {100u, 120u}) {
    Session fork = dense.fork();
    fork.prefill(part(first, first + 12), observe);
    Session again = dense.fork();
    again.prefill(part(first, first + 12), observe);
    EXPECT_TRUE(same_bits(fork.last_logits(), again.last_logits()));
    EXPECT_EQ(difference(fork, again), "");
    EXPECT_EQ(fork.next_position(), 112u);
  }
  EXPECT_EQ(dense.next_position(), 100u);
}

TEST_P(PromptParts, WhatIsRefusedOrCancelledChangesNothing) {
  const Observation observe{32, 32};
  const std::size_t document[] = {100};
  Session session = read(document, observe);
  const Session before = session.fork();
  const auto check = [&](ErrorCode code, const auto& call) {
    const std::string message = error_of(code, call);
    EXPECT_EQ(difference(session, before), "") << message;
    EXPECT_TRUE(same_bits(session.last_logits(), before.last_logits())) << message;
    return message;
  };
  check(ErrorCode::kInvalidArgument, [&] { session.prefill({}, observe); });
  const std::string message = check(ErrorCode::kInvalidArgument, [&] {
    session.prefill(part(100, 110), {64, 32});
  });
  EXPECT_NE(message.find("last 54 queries"), std::string::npos) << message;
  EXPECT_NE(message.find("32 queries"), std::string::npos) << message;
  check(ErrorCode::kInvalidArgument, [&] { session.prefill(part(100, 110), {32, 16}); });
  check(ErrorCode::kInvalidArgument,
        [&] { session.prefill(part(0, engine_->config().n_ctx_train - 99), observe); });
  check(ErrorCode::kInvalidArgument,
        [&] { session.condense(part(100, 110), request("full", "100%")); });
  CancelFlag cancel{false};
  std::size_t n_calls = 0;
  CallControl control{[&](const Progress&) { cancel = ++n_calls > 2; }, &cancel};
  check(ErrorCode::kCancelled, [&] { session.prefill(part(100, 150), observe, control); });
  // What was refused can still be read.
  Session other = before.fork();
  session.prefill(part(100, 150), observe);
  other.prefill(part(100, 150), observe);
  EXPECT_EQ(difference(session, other), "");
  session.compress(request("snapkv", "50%"));
  error_of(ErrorCode::kInvalidArgument, [&] { session.prefill(part(150, 160), observe); });
  other.extend(part(150, 160));
  error_of(ErrorCode::kInvalidArgument, [&] { other.prefill(part(160, 170), observe); });
}

}  // namespace
}  // namespace precis::test
