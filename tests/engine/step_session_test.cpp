// Sessions with decode=step: the budget while text is generated, calls of many tokens, forks,
// batches, threads, and calls that fail.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "engine/batch.h"
#include "engine/session_checks.h"
#include "engine/step_cache.h"
#include "oracle/parity.h"

namespace precis::test {
namespace {

const char* const kStepping[] = {"streaming", "h2o",       "tova", "scissorhands",
                                 "vatp",      "keyformer", "cam",  "weightedkv"};

std::string stepping(const std::string& preset, const std::string& arguments = "(recent=8)") {
  return (preset == "tova" ? preset : preset + arguments) + " decode=step";
}

// Everything that the stepped layers hold, in the order of the slots.
struct Contents {
  std::vector<std::int32_t> positions;
  std::vector<Half> rows;
  friend bool operator==(const Contents& a, const Contents& b) {
    return a.positions == b.positions && a.rows.size() == b.rows.size() &&
           same_bits(a.rows.data(), b.rows.data(), a.rows.size());
  }
};

Contents contents(const Session& session) {
  Contents out;
  for (std::size_t il = 0; il < session.engine()->config().n_layers; ++il) {
    const StepCache* cache = session.step_cache(il);
    if (cache == nullptr) continue;
    for (std::size_t h = 0; h < cache->shape().n_kv_heads; ++h) {
      const auto positions = cache->positions(h);
      out.positions.insert(out.positions.end(), positions.begin(), positions.end());
      const EntryView rows = cache->head(h);
      const std::size_t n = rows.n * cache->shape().head_dim;
      out.rows.insert(out.rows.end(), rows.keys, rows.keys + n);
      out.rows.insert(out.rows.end(), rows.values, rows.values + n);
    }
  }
  return out;
}

class StepSession : public TinySession {
 protected:
  StepSession() : TinySession(150, 210) {}
  std::size_t most_bytes(const std::string& keep) const {
    const std::size_t rows = engine_->compressible_layers().size() * engine_->config().n_kv_heads *
                             KvShape{1, engine_->config().head_dim}.row_pair_bytes();
    return Budget::parse(keep).bytes(prompt_.size() * rows, prompt_.size());
  }
};

INSTANTIATE_TEST_SUITE_P(Models, StepSession, testing::Values("llama", "gemma3", "qwen2"),
                         [](const auto& info) { return std::string(info.param); });

std::size_t stepped_bytes(const Session& session) {
  std::size_t bytes = 0;
  for (std::size_t il = 0; il < session.engine()->config().n_layers; ++il)
    if (session.step_cache(il) != nullptr) bytes += session.step_cache(il)->bytes();
  return bytes;
}

TEST_P(StepSession, BytesStayWithinTheBudgetFor200Tokens) {
  for (const char* preset : kStepping) {
    SCOPED_TRACE(preset);
    Session session(engine_);
    const CompressionReport report = session.condense(prompt_, request(stepping(preset), "60%"));
    EXPECT_FALSE(report.skipped);
    const std::size_t begin = stepped_bytes(session);
    EXPECT_EQ(begin, report.kept_bytes);
    EXPECT_LE(begin, most_bytes("60%"));
    for (std::size_t t = 0; t < 200; ++t) {
      session.extend(std::span(more_).subspan(t, 1));
      ASSERT_EQ(stepped_bytes(session), begin) << t;
    }
    EXPECT_EQ(session.next_position(), prompt_.size() + 200);
    for (const float logit : session.last_logits()) ASSERT_TRUE(std::isfinite(logit));
  }
}

// Sliding layers, which are not condensed, count in a budget in bytes with all that they ever hold.
TEST_P(StepSession, BytesOfAllLayersStayWithinABudgetInBytes) {
  const std::size_t budget = most_bytes("60%") + 30000;
  for (const char* preset : {"h2o", "scissorhands"}) {
    Session session = condensed(request(stepping(preset), std::to_string(budget) + "B"));
    std::size_t most = 0;
    for (const Token& token : more_) {
      session.extend({&token, 1});
      most = std::max(most, session.kv_bytes());
    }
    EXPECT_LE(most, budget) << preset;
    EXPECT_GT(most, budget / 2) << preset;
  }
}

// A call of many tokens is cut in chunks; each ends within the budget, and the newest tokens are
// there.
TEST_P(StepSession, ManyTokensAtOnceEndWithinTheBudget) {
  for (const char* preset : kStepping) {
    SCOPED_TRACE(preset);
    Session session = condensed(request(stepping(preset), "60%"));
    const std::size_t begin = stepped_bytes(session);
    session.extend(std::span(more_).first(100), 3);
    EXPECT_EQ(stepped_bytes(session), begin);
    const auto last = static_cast<std::int32_t>(prompt_.size() + 99);
    for (std::size_t il = 0; il < engine_->config().n_layers; ++il)
      if (const StepCache* cache = session.step_cache(il)) {
        const auto positions = cache->positions(0);
        EXPECT_EQ(std::set(positions.begin(), positions.end()).size(), positions.size());
        EXPECT_EQ(std::count(positions.begin(), positions.end(), last), 1);
      }
  }
}

// 100 tokens in one call are the chunks of 32, 32, 32 and 4 that it says. Sliding layers drop rows
// at the end of a call, so that theirs are added up in other slices: the same but for rounding.
TEST_P(StepSession, OneCallIsItsChunks) {
  Session whole = condensed(request(stepping("h2o"), "60%"));
  Session parts = whole.fork();
  whole.extend(std::span(more_).first(100));
  for (const std::size_t at : {0, 32, 64, 96})
    parts.extend(std::span(more_).subspan(at, std::min<std::size_t>(32, 100 - at)));
  if (engine_->config().window > 0) {
    EXPECT_EQ(contents(whole).positions, contents(parts).positions);
    EXPECT_LT(nmse(whole.last_logits(), parts.last_logits()), 1e-6);
    return;
  }
  EXPECT_TRUE(contents(whole) == contents(parts));
  EXPECT_TRUE(same_bits(whole.last_logits(), parts.last_logits()));
}

// While nothing has to go, tokens read one by one and at once see the same, and so does a cache
// without a budget.
TEST_P(StepSession, WithRoomToGrowItIsTheFullCache) {
  Session grown = condensed(request(stepping("h2o"), "300"));
  Session full = condensed(request("full", "100%"));
  ASSERT_NE(grown.step_cache(engine_->compressible_indices()[0]), nullptr);
  const auto a = continue_with(grown, std::span(more_).first(60));
  const auto b = continue_with(full, std::span(more_).first(60));
  ASSERT_EQ(a.size(), b.size());
  EXPECT_LT(nmse(a, b), 1e-8);
}

// A budget in tokens that the prompt does not fill is filled by what comes after it.
TEST_P(StepSession, GrowsToTheBudgetAndStays) {
  Session session = condensed(request(stepping("h2o"), "200"));
  const std::size_t most = most_bytes("100%") * 200 / prompt_.size();
  std::size_t before = stepped_bytes(session);
  std::size_t n_grown = 0;
  for (const Token& token : more_) {
    session.extend({&token, 1});
    n_grown += stepped_bytes(session) > before ? 1 : 0;
    before = stepped_bytes(session);
    ASSERT_LE(before, most);
  }
  EXPECT_GT(n_grown, 20u);
  EXPECT_LT(n_grown, 60u);
}

TEST_P(StepSession, ForksAreIndependent) {
  for (const char* preset : {"h2o", "weightedkv"}) {
    Session session = condensed(request(stepping(preset), "60%"));
    session.extend(std::span(more_).first(20));
    Session fork = session.fork();
    const Contents before = contents(fork);
    session.extend(std::span(more_).subspan(20, 30));
    EXPECT_TRUE(contents(fork) == before);
    EXPECT_FALSE(contents(session) == before);
    fork.extend(std::span(more_).subspan(20, 30));
    EXPECT_TRUE(contents(fork) == contents(session));
    EXPECT_TRUE(same_bits(fork.last_logits(), session.last_logits()));
  }
}

// Few tokens: on a busy machine every node of a graph waits for the slowest thread.
TEST_P(StepSession, ThreadsDoNotChangeABit) {
  // Three threads on two cores wait for each other in every graph, so one method is enough there.
  const auto two = load(2), three = load(3);
  for (const char* preset : kStepping) {
    SCOPED_TRACE(preset);
    Session one = condensed(request(stepping(preset), "60%"));
    Session other(std::string(preset) == "h2o" ? three : two);
    other.condense(prompt_, request(stepping(preset), "60%"));
    EXPECT_TRUE(same_bits(std::span<const float>(continue_with(one, std::span(more_).first(12))),
                          continue_with(other, std::span(more_).first(12))));
    EXPECT_TRUE(contents(one) == contents(other));
  }
}

TEST_P(StepSession, PrefillAndCompressIsCondense) {
  const CondenseRequest req = request(stepping("weightedkv"), "60%");
  Session a = condensed(req);
  Session b(engine_);
  b.prefill(prompt_, req.method.observation(prompt_.size()));
  b.compress(req);
  EXPECT_TRUE(contents(a) == contents(b));
  EXPECT_TRUE(same_bits(std::span<const float>(continue_with(a, std::span(more_).first(50))),
                        continue_with(b, std::span(more_).first(50))));
}

TEST_P(StepSession, BatchedStepsAreStepsAlone) {
  std::vector<Session> sessions;
  std::vector<Session> alone;
  for (const char* spec :
       {"h2o(recent=8) decode=step", "tova decode=step", "h2o", "cam(recent=8) decode=step"}) {
    sessions.push_back(condensed(request(spec, "60%")));
    alone.push_back(sessions.back().fork());
  }
  BatchDecoder decoder(engine_);
  for (std::size_t t = 0; t < 40; ++t) {
    std::vector<BatchEntry> entries;
    for (Session& session : sessions) entries.push_back({&session, more_[t]});
    decoder.step(entries);
    for (std::size_t i = 0; i < alone.size(); ++i) {
      alone[i].extend(std::span(more_).subspan(t, 1));
      ASSERT_TRUE(same_bits(alone[i].last_logits(), sessions[i].last_logits())) << t << " " << i;
    }
  }
  for (std::size_t i = 0; i < alone.size(); ++i)
    EXPECT_TRUE(contents(alone[i]) == contents(sessions[i])) << i;
}

// Cancelled in a late chunk: everything is as before the call, also what was evicted.
TEST_P(StepSession, ACancelledCallLeavesNothing) {
  Session session = condensed(request(stepping("weightedkv"), "60%"));
  session.extend(std::span(more_).first(10));
  Session copy = session.fork();
  const Contents before = contents(session);
  CancelFlag cancel{false};
  std::size_t n_calls = 0;
  const CallControl control{[&](const Progress&) { cancel = ++n_calls == 2; }, &cancel};
  const auto read = [&] { session.extend(std::span(more_).subspan(10, 120), 1, control); };
  EXPECT_EQ(error_of(ErrorCode::kCancelled, read), "cancelled by the caller");
  EXPECT_EQ(n_calls, 2u);
  EXPECT_TRUE(contents(session) == before);
  EXPECT_EQ(session.next_position(), prompt_.size() + 10);
  cancel = true;  // and within the only chunk
  error_of(ErrorCode::kCancelled, [&] {
    session.extend(std::span(more_).subspan(10, 1), 1, {{}, &cancel});
  });
  EXPECT_TRUE(contents(session) == before);
  EXPECT_TRUE(same_bits(std::span<const float>(continue_with(session, std::span(more_).first(20))),
                        continue_with(copy, std::span(more_).first(20))));
}

// Models whose rows are whole blocks, so that it is not for another reason.
class BlockStepSession : public StepSession {};
INSTANTIATE_TEST_SUITE_P(Models, BlockStepSession, testing::Values("gemma3", "llama-hd64"),
                         [](const auto& info) {
                           return std::string(info.param).substr(0, 5) == "gemma" ? "gemma3"
                                                                                  : "llama_hd64";
                         });

TEST_P(BlockStepSession, QuantisedRowsAreRefused) {
  CondenseRequest req = request(stepping("h2o"), "60%");
  req.rows = {RowType::kF16, RowType::kQ8_0};
  const std::string message = error_of(ErrorCode::kUnsupported, [&] { condensed(req); });
  EXPECT_NE(message.find("q8_0"), std::string::npos) << message;
  EXPECT_NE(message.find("use f16"), std::string::npos) << message;
}

TEST_P(StepSession, ShortPromptsAreLeftWholeOrRefused) {
  Session session(engine_);
  const auto prompt = std::span(prompt_).first(10);
  const CompressionReport report = session.condense(prompt, request("h2o decode=step", "50%"));
  ASSERT_TRUE(report.skipped);
  EXPECT_NE(report.skipped->find("nothing is evicted later"), std::string::npos);
  EXPECT_EQ(session.step_cache(engine_->compressible_indices()[0]), nullptr);
  session.reset();
  // 20 tokens' bytes never hold the 32 recent ones.
  const std::string message = error_of(ErrorCode::kInvalidArgument, [&] {
    session.condense(prompt, request("h2o decode=step", "20"));
  });
  EXPECT_NE(message.find("32 are needed"), std::string::npos) << message;
  // Nor do fewer, though the prompt alone would be too many.
  for (const char* keep : {"8", "10"}) {
    session.reset();
    const std::string fewer = error_of(ErrorCode::kInvalidArgument, [&] {
      session.condense(prompt, request("h2o decode=step", keep));
    });
    EXPECT_NE(fewer.find("32 are needed"), std::string::npos) << fewer;
  }
}

TEST_P(StepSession, ResetStartsOver) {
  Session session = condensed(request(stepping("vatp"), "60%"));
  session.extend(std::span(more_).first(40));
  session.reset();
  EXPECT_EQ(session.kv_bytes(), 0u);
  session.condense(prompt_, request(stepping("vatp"), "60%"));
  Session fresh = condensed(request(stepping("vatp"), "60%"));
  EXPECT_TRUE(contents(session) == contents(fresh));
  EXPECT_TRUE(same_bits(std::span<const float>(continue_with(session, std::span(more_).first(20))),
                        continue_with(fresh, std::span(more_).first(20))));
}

}  // namespace
}  // namespace precis::test
