// Sessions at the edges: shortest prompts, the sliding window's borders, errors, cancelling,
// progress.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "engine/session_checks.h"
#include "oracle/parity.h"

namespace precis::test {
namespace {

class SessionEdges : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    engine_ = Engine::load(tiny_model(GetParam()), {.n_threads = 1});
    tokens_ = random_tokens(engine_->config().n_ctx_train + 8, engine_->config().n_vocab, 11);
  }
  std::span<const Token> first(std::size_t n) const { return std::span(tokens_).first(n); }

  std::shared_ptr<const Engine> engine_;
  std::vector<Token> tokens_;
};

INSTANTIATE_TEST_SUITE_P(Models, SessionEdges, testing::Values("llama", "gemma3"),
                         [](const auto& info) { return std::string(info.param); });

// Prompts around the number of protected tokens: those not longer are left whole and say so.
TEST_P(SessionEdges, ShortPrompts) {
  const std::vector<Token> more = random_tokens(8, engine_->config().n_vocab, 5);
  for (const std::string& spec : engine_presets()) {
    const CondenseRequest req = request(spec, "99%");
    const std::size_t n_protected =
        req.method.is_full() ? 16 : req.method.selector->protection().count(SIZE_MAX / 2);
    for (const std::size_t n : {std::size_t{1}, std::size_t{2}, n_protected - 1, n_protected}) {
      if (n == 0) continue;
      Session session(engine_), full(engine_);
      const CompressionReport report = session.condense(first(n), req);
      EXPECT_TRUE(report.skipped.has_value() || req.method.is_full()) << spec << ", " << n;
      full.condense(first(n), request("full", "100%"));
      EXPECT_TRUE(same_bits(session.last_logits(), full.last_logits())) << spec << ", " << n;
      EXPECT_TRUE(same_bits(continue_with(session, more), continue_with(full, more))) << spec;
    }
    // One token longer: either something is given up, or the budget cannot hold the protected
    // tokens.
    Session session(engine_);
    try {
      const CompressionReport report = session.condense(first(n_protected + 1), req);
      EXPECT_LE(report.kept_bytes, report.dense_bytes) << spec;
      EXPECT_EQ(session.next_position(), n_protected + 1) << spec;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << spec << ": " << error.what();
      EXPECT_EQ(session.next_position(), 0u);
    }
  }
}

// Lengths where the sliding window of gemma3 (16) begins to bite, read in one go and token by
// token. The reference reads everything at once: below 64 tokens libllama sums values in f16, which
// is no reference.
TEST_P(SessionEdges, WindowBorders) {
  constexpr std::size_t kMore = 80;
  const std::size_t window = engine_->config().window > 0 ? engine_->config().window : 16;
  Oracle oracle(tiny_model(GetParam()), {.n_threads = 1});
  for (const std::size_t n : {window - 1, window, window + 1, 2 * window}) {
    const auto more = first(n + kMore).subspan(n);
    oracle.reset();
    const auto all = oracle.extend(first(n + kMore));
    const auto reference = std::span<const float>(all).last(kMore * oracle.n_vocab());
    Session layer_major(engine_), ones(engine_), condensed(engine_);
    layer_major.prefill(first(n));
    for (const Token& token : first(n)) ones.extend({&token, 1});
    condensed.condense(first(n), request("selkv", "100%"));
    EXPECT_LE(nmse(continue_with(layer_major, more), reference), 1e-6) << n;
    EXPECT_LE(nmse(continue_with(ones, more), reference), 1e-6) << n;
    EXPECT_LE(nmse(continue_with(condensed, more), reference), 1e-6) << n;
    for (std::size_t il = 0; il < engine_->config().n_layers; ++il) {
      if (!engine_->config().is_sliding[il]) continue;
      EXPECT_EQ(condensed.frozen_layer(il), nullptr);
      EXPECT_LT(condensed.tail(il).size(), n + kMore) << "sliding layers forget";
      EXPECT_EQ(condensed.tail(il).next_position(), static_cast<std::int32_t>(n + more.size()));
    }
  }
}

TEST_P(SessionEdges, FullCacheCountsOnlyTheWindowOfSlidingLayers) {
  const ModelConfig& config = engine_->config();
  Session session(engine_);
  session.prefill(first(200));
  std::size_t rows = 0;
  for (const bool sliding : config.is_sliding) rows += sliding ? config.window : 200;
  EXPECT_EQ(session.kv_bytes_full(), rows * config.n_kv_heads * config.head_dim * 4);
  EXPECT_EQ(session.kv_bytes(), session.kv_bytes_full());
}

TEST_P(SessionEdges, BadPromptsAreRefusedAndChangeNothing) {
  Session session(engine_);
  const std::size_t context = engine_->config().n_ctx_train;
  const CondenseRequest req = request("selkv", "25%");
  error_of(ErrorCode::kInvalidArgument, [&] { session.prefill({}); });
  error_of(ErrorCode::kInvalidArgument, [&] { session.condense({}, req); });
  for (const bool condense : {false, true}) {
    const std::string message = error_of(ErrorCode::kInvalidArgument, [&] {
      condense ? void(session.condense(first(context + 1), req))
               : session.prefill(first(context + 1));
    });
    EXPECT_NE(message.find(std::to_string(context)), std::string::npos) << message;
    EXPECT_NE(message.find(std::to_string(context + 1)), std::string::npos) << message;
  }
  error_of(ErrorCode::kInvalidArgument,
           [&] { session.condense(first(200), request("selkv", "2")); });
  EXPECT_EQ(session.next_position(), 0u);
  EXPECT_EQ(session.kv_bytes(), 0u);
  session.prefill(first(context));  // exactly full is allowed
  EXPECT_EQ(session.next_position(), context);
  const std::size_t bytes = session.kv_bytes();
  const std::string message =
      error_of(ErrorCode::kInvalidArgument, [&] { session.extend(first(1)); });
  EXPECT_NE(message.find(std::to_string(context)), std::string::npos) << message;
  EXPECT_EQ(session.next_position(), context);
  EXPECT_EQ(session.kv_bytes(), bytes);
}

TEST_P(SessionEdges, ProgressRisesToOne) {
  const CondenseRequest req = request("selkv", "25%");
  const auto run = [&](auto&& call) {
    std::vector<Progress> seen;
    CallControl control;
    control.progress = [&](const Progress& p) { seen.push_back(p); };
    call(control);
    ASSERT_GE(seen.size(), 1u);  // once per layer at least; gemma3 has one layer to compress
    for (std::size_t i = 0; i < seen.size(); ++i) {
      EXPECT_GE(seen[i].fraction, i == 0 ? 0.0 : seen[i - 1].fraction);
      EXPECT_LE(seen[i].n_done, seen[i].n_total);
      if (i > 0) {
        EXPECT_GE(seen[i].n_done, seen[i - 1].n_done);
      }
      EXPECT_EQ(seen[i].n_total, seen[0].n_total);
    }
    EXPECT_EQ(seen.back().fraction, 1.0);
    EXPECT_EQ(seen.back().n_done, seen.back().n_total);
  };
  Session session(engine_), other(engine_);
  run([&](const CallControl& c) { session.condense(first(300), req, c); });
  run([&](const CallControl& c) { other.prefill(first(300), req.method.observation(300), c); });
  run([&](const CallControl& c) { other.compress(req, c); });
}

// Raises the flag at the first report, which both stages make from inside their work.
TEST_P(SessionEdges, CancelledCallsChangeNothing) {
  const CondenseRequest req = request("selkv", "25%");
  const std::vector<Token> more = random_tokens(8, engine_->config().n_vocab, 5);
  Session never(engine_);
  never.condense(first(400), req);
  CancelFlag cancel = false;
  CallControl control{[&](const Progress& p) { cancel = p.fraction < 1.0; }, &cancel};

  Session session(engine_);
  error_of(ErrorCode::kCancelled, [&] { session.condense(first(400), req, control); });
  EXPECT_EQ(session.next_position(), 0u);
  EXPECT_EQ(session.kv_bytes(), 0u);
  cancel = false;
  error_of(ErrorCode::kCancelled, [&] { session.prefill(first(400), {64, 32}, control); });
  EXPECT_EQ(session.next_position(), 0u);
  session.prefill(first(400), req.method.observation(400));
  const std::size_t dense_bytes = session.kv_bytes();
  cancel = true;  // raised before the call begins: gemma3 has one layer to compress, and one report
  const CallControl raised{{}, &cancel};
  error_of(ErrorCode::kCancelled, [&] { session.compress(req, raised); });
  EXPECT_EQ(session.next_position(), 400u);
  EXPECT_EQ(session.kv_bytes(), dense_bytes);
  session.compress(req);
  EXPECT_EQ(difference(session, never), "");

  error_of(ErrorCode::kCancelled, [&] { session.extend(more, 1, raised); });
  EXPECT_EQ(difference(session, never), "");
  EXPECT_TRUE(same_bits(continue_with(session, more), continue_with(never, more)));
}

TEST_P(SessionEdges, AnotherThreadCancels) {
  for (int attempt = 0; attempt < 5; ++attempt) {
    Session session(engine_);
    CancelFlag cancel = false;
    std::atomic<bool> working = false;
    CallControl control{[&](const Progress&) { working = true; }, &cancel};
    std::thread other([&] {
      while (!working) std::this_thread::yield();
      cancel = true;
    });
    try {
      session.condense(first(1000), request("selkv", "25%"), control);
      EXPECT_EQ(session.next_position(), 1000u);  // the flag came too late, and that is fine
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCancelled) << error.what();
      EXPECT_EQ(session.next_position(), 0u);
    }
    working = true;
    other.join();
  }
}

// Two sessions of one engine may run on different threads.
TEST_P(SessionEdges, SessionsShareAnEngineAcrossThreads) {
  const CondenseRequest req = request("selkv", "25%");
  Session reference(engine_);
  reference.condense(first(150), req);
  const auto expected = continue_with(reference, first(20));
  std::vector<std::vector<float>> results(3);
  std::vector<std::thread> threads;
  for (auto& result : results) {
    threads.emplace_back([&] {
      Session session(engine_);
      session.condense(first(150), req);
      result = continue_with(session, first(20));
    });
  }
  for (std::thread& t : threads) t.join();
  for (const auto& result : results) EXPECT_TRUE(same_bits(result, expected));
}

TEST_P(SessionEdges, MovedSessionsWork) {
  Session a(engine_);
  a.prefill(first(20));
  Session b(std::move(a));
  EXPECT_EQ(b.next_position(), 20u);
  b.extend(first(1));
  EXPECT_EQ(b.next_position(), 21u);
}

}  // namespace
}  // namespace precis::test
