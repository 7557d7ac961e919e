// Batched decoding on tiny models: whoever else is in a step, a session ends up with the bits of a
// session that was extended alone.
#include "engine/batch.h"

#include <gtest/gtest.h>
#include <sys/time.h>

#include <csignal>
#include <deque>
#include <thread>

#include "engine/session_checks.h"
#include "oracle/parity.h"

namespace precis::test {
namespace {

// Sessions of different methods and lengths, each with a twin that is only ever extended alone.
struct Twins {
  std::deque<Session> batched, alone;

  void add(Session session) {
    alone.push_back(session.fork());
    batched.push_back(std::move(session));
  }
  std::size_t size() const { return batched.size(); }

  // One step of the chosen sessions in the given order; the twins follow one by one.
  void step(BatchDecoder& decoder, const std::vector<std::size_t>& chosen,
            const std::vector<Token>& tokens) {
    std::vector<BatchEntry> entries;
    for (std::size_t i = 0; i < chosen.size(); ++i)
      entries.push_back({&batched[chosen[i]], tokens[i]});
    decoder.step(entries);
    for (std::size_t i = 0; i < chosen.size(); ++i) alone[chosen[i]].extend({&tokens[i], 1});
  }
  // Empty if every pair is equal, else what differs.
  std::string first_difference() const {
    for (std::size_t i = 0; i < size(); ++i) {
      const std::string where = "session " + std::to_string(i) + ": ";
      if (!same_bits(batched[i].last_logits(), alone[i].last_logits())) return where + "logits";
      const std::string found = difference(batched[i], alone[i]);
      if (!found.empty()) return where + found;
    }
    return "";
  }
};

class BatchTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { engine_ = load(1); }
  static std::shared_ptr<const Engine> load(std::size_t n_threads) {
    // The same product of weights in every engine: which one is faster may be measured differently.
    return Engine::load(tiny_model(GetParam()),
                        {.n_threads = n_threads, .matmul = MatmulMode::kSgemm});
  }
  std::vector<Token> text(std::size_t n, unsigned seed) const {
    return random_tokens(n, engine_->config().n_vocab, seed);
  }
  Session condensed(const std::shared_ptr<const Engine>& engine, const std::string& spec,
                    const std::string& keep, std::size_t n, unsigned seed) const {
    Session session(engine);
    session.condense(text(n, seed), request(spec, keep));
    return session;
  }
  // Lengths around the sliding window of 16, one longer than a slice of the attention, one empty.
  Twins mixed(const std::shared_ptr<const Engine>& engine) const {
    Twins twins;
    twins.add(condensed(engine, "selkv", "25%", 230, 1));
    twins.add(condensed(engine, "snapkv", "50%", 97, 2));
    twins.add(condensed(engine, "full", "100%", 15, 3));
    twins.add(condensed(engine, "streaming", "48", 300, 4));
    Session dense(engine);
    dense.prefill(text(40, 5));
    twins.add(std::move(dense));
    twins.add(Session(engine));
    twins.add(condensed(engine, "random", "60%", 64, 6));
    twins.add(condensed(engine, "full", "100%", 700, 7));
    twins.add(condensed(engine, "selkv", "100%", 1, 8));
    twins.add(condensed(engine, "reskv(validate=off,parts=0.5,gate=linear)", "40%", 260, 9));
    return twins;
  }

  std::shared_ptr<const Engine> engine_;
};

INSTANTIATE_TEST_SUITE_P(Models, BatchTest, testing::Values("llama", "gemma3", "qwen2", "qwen3"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(BatchTest, SessionsThatComeAndGoEqualTheirSoloRuns) {
  BatchDecoder decoder(engine_);
  Twins twins = mixed(engine_);
  std::mt19937 draw(9);
  std::vector<std::size_t> order(twins.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::vector<bool> sizes_seen(twins.size() + 1);
  for (int round = 0; round < 60; ++round) {
    std::shuffle(order.begin(), order.end(), draw);
    const std::size_t n = 1 + draw() % twins.size();
    sizes_seen[n] = true;
    const std::vector<std::size_t> chosen(order.begin(), order.begin() + static_cast<long>(n));
    twins.step(decoder, chosen, text(n, static_cast<unsigned>(100 + round)));
    if (round % 7 == 3) {  // a question of several tokens between two steps
      const std::size_t i = draw() % twins.size();
      const auto question = text(5, static_cast<unsigned>(round));
      twins.batched[i].extend(question);
      twins.alone[i].extend(question);
    }
    if (round == 30) {  // one leaves for good, another comes
      twins.batched[3].reset();
      twins.alone[3].reset();
      twins.add(condensed(engine_, "selkv", "20%", 260, 77));
      order.push_back(twins.size() - 1);
      sizes_seen.resize(twins.size() + 1);
    }
    ASSERT_EQ(twins.first_difference(), "") << "round " << round << ", " << n << " sessions";
  }
  EXPECT_GE(std::count(sizes_seen.begin(), sizes_seen.end(), true), 7);
}

TEST_P(BatchTest, TheLargestStepEqualsSoloRuns) {
  BatchDecoder decoder(engine_);
  Twins twins;
  std::vector<std::size_t> all;
  for (std::size_t i = 0; i < BatchDecoder::kMaxEntries; ++i) {
    twins.add(condensed(engine_, "selkv", "100%", 20 + i, static_cast<unsigned>(i)));
    all.push_back(i);
  }
  for (unsigned s = 0; s < 2; ++s) twins.step(decoder, all, text(all.size(), s));
  EXPECT_EQ(twins.first_difference(), "");
}

TEST_P(BatchTest, ForksOfOneCondensedDocument) {
  BatchDecoder decoder(engine_);
  const Session document = condensed(engine_, "selkv", "25%", 230, 1);
  Twins twins;
  std::vector<std::size_t> all;
  for (std::size_t i = 0; i < 6; ++i) {
    twins.add(document.fork());
    all.push_back(i);
  }
  const std::size_t layer = engine_->compressible_indices()[0];
  for (unsigned s = 0; s < 20; ++s) twins.step(decoder, all, text(all.size(), s));
  EXPECT_EQ(twins.first_difference(), "");
  for (const Session& session : twins.batched)
    EXPECT_EQ(session.frozen_layer(layer), document.frozen_layer(layer));
  EXPECT_FALSE(same_bits(twins.batched[0].last_logits(), twins.batched[1].last_logits()));
  EXPECT_EQ(document.next_position(), 230u);
}

// Few steps: on a busy machine every node of a graph waits for the slowest thread.
TEST_P(BatchTest, AnyNumberOfThreadsGivesTheSameBits) {
  std::vector<std::vector<float>> reference;
  for (const std::size_t n_threads : {1, 3}) {
    const auto engine = load(n_threads);
    BatchDecoder decoder(engine);
    Twins twins = mixed(engine);
    std::vector<std::size_t> all(twins.size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
    std::vector<BatchEntry> entries;
    for (unsigned s = 0; s < 2; ++s) {
      const auto tokens = text(all.size(), s);
      entries.clear();
      for (const std::size_t i : all) entries.push_back({&twins.batched[i], tokens[i]});
      decoder.step(entries);
    }
    for (const std::size_t i : all) {
      if (n_threads == 1)
        reference.push_back(copy(twins.batched[i].last_logits()));
      else
        EXPECT_TRUE(same_bits(twins.batched[i].last_logits(), reference[i]))
            << "session " << i << " on " << n_threads << " threads";
    }
  }
}

// Sliding layers forget in a batch as they do alone, far beyond their window.
TEST_P(BatchTest, LongRuns) {
  BatchDecoder decoder(engine_);
  Twins twins;
  twins.add(condensed(engine_, "selkv", "25%", 100, 1));
  twins.add(condensed(engine_, "snapkv", "50%", 90, 2));
  for (unsigned s = 0; s < 150; ++s) twins.step(decoder, {s % 2, 1 - s % 2}, text(2, s));
  EXPECT_EQ(twins.first_difference(), "");
  EXPECT_EQ(twins.batched[0].next_position(), 250u);
}

// A prompt is read in pieces between steps of other sessions: from its progress callback.
TEST_P(BatchTest, StepsBetweenTheGraphsOfALongPrompt) {
  BatchDecoder decoder(engine_);
  Twins twins;
  twins.add(condensed(engine_, "selkv", "25%", 100, 1));
  twins.add(condensed(engine_, "selkv", "25%", 120, 2));
  unsigned n_steps = 0;
  CallControl control;
  control.progress = [&](const Progress&) { twins.step(decoder, {0, 1}, text(2, n_steps++)); };
  const auto prompt = text(300, 3);
  Session interrupted(engine_), alone(engine_);
  interrupted.condense(prompt, request("selkv", "25%"), control);
  alone.condense(prompt, request("selkv", "25%"));
  EXPECT_GE(n_steps, engine_->config().n_layers);
  EXPECT_EQ(twins.first_difference(), "");
  EXPECT_EQ(difference(interrupted, alone), "");
  EXPECT_TRUE(same_bits(interrupted.last_logits(), alone.last_logits()));
}

TEST_P(BatchTest, WrongStepsAreRefusedAndChangeNothing) {
  BatchDecoder decoder(engine_);
  Twins twins = mixed(engine_);
  const auto expect_refusal = [&](const std::vector<BatchEntry>& entries, const char* words) {
    const std::string message =
        error_of(ErrorCode::kInvalidArgument, [&] { decoder.step(entries); });
    EXPECT_NE(message.find(words), std::string::npos) << message;
    EXPECT_EQ(twins.first_difference(), "") << words;
  };
  Session* const a = &twins.batched[0];
  Session* const b = &twins.batched[1];
  Session* const c = &twins.batched[2];
  expect_refusal({}, "not 0");
  expect_refusal(std::vector<BatchEntry>(BatchDecoder::kMaxEntries + 1, {a, 1}), "not 65");
  expect_refusal({{a, 1}, {b, 1}, {c, 1}, {b, 2}}, "entries 1 and 3");
  Session foreign(load(1));
  expect_refusal({{a, 1}, {&foreign, 1}}, "entry 1 of 2");
  EXPECT_EQ(foreign.next_position(), 0u);
  const auto n_vocab = static_cast<Token>(engine_->config().n_vocab);
  expect_refusal({{a, 1}, {b, 2}, {c, n_vocab}}, "entry 2 of 3");
  expect_refusal({{a, -1}}, "entry 0 of 1");
  Session filled(engine_);
  filled.prefill(text(engine_->config().n_ctx_train, 5));
  expect_refusal({{a, 1}, {b, 1}, {&filled, 1}, {c, 1}}, "entry 2 of 4");
  EXPECT_EQ(filled.next_position(), engine_->config().n_ctx_train);
  twins.step(decoder, {0, 1, 2}, {1, 2, 3});
  EXPECT_EQ(twins.first_difference(), "");
}

CancelFlag* interrupted = nullptr;

TEST_P(BatchTest, CancelledStepsChangeNothing) {
  BatchDecoder decoder(engine_);
  Twins twins = mixed(engine_);
  std::vector<BatchEntry> entries;
  for (Session& session : twins.batched) entries.push_back({&session, 7});
  CancelFlag cancel = true;
  error_of(ErrorCode::kCancelled, [&] { decoder.step(entries, {{}, &cancel}); });
  EXPECT_EQ(twins.first_difference(), "");
  // A timer raises the flag at some time of the step, earlier and earlier. Its signal interrupts
  // this very thread: however busy the machine is, it comes while the step runs.
  interrupted = &cancel;
  const auto before = std::signal(SIGALRM, [](int) { *interrupted = true; });
  int n_cancelled = 0;
  for (int attempt = 0; attempt < 40; ++attempt) {
    cancel = false;
    itimerval delay{};
    delay.it_value.tv_usec = 1 + 25 * (39 - attempt);
    setitimer(ITIMER_REAL, &delay, nullptr);
    try {
      decoder.step(entries, {{}, &cancel});
      for (Session& session : twins.alone) session.extend(std::vector<Token>{7});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCancelled) << error.what();
      ++n_cancelled;
    }
    const itimerval off{};
    setitimer(ITIMER_REAL, &off, nullptr);
    ASSERT_EQ(twins.first_difference(), "") << "attempt " << attempt;
  }
  std::signal(SIGALRM, before);
  EXPECT_GT(n_cancelled, 0);
}

// A callback that throws is the last thing that can go wrong before sessions move on.
TEST_P(BatchTest, AThrowingCallbackChangesNothing) {
  BatchDecoder decoder(engine_);
  Twins twins = mixed(engine_);
  const std::vector<BatchEntry> entries{{&twins.batched[0], 1}, {&twins.batched[4], 2}};
  CallControl control;
  control.progress = [](const Progress&) { throw std::runtime_error("no"); };
  EXPECT_THROW(decoder.step(entries, control), std::runtime_error);
  EXPECT_EQ(twins.first_difference(), "");
}

// Decoders and sessions of one engine on several threads.
TEST_P(BatchTest, DecodersShareAnEngineAcrossThreads) {
  std::vector<std::string> found(3, "not run");
  std::vector<std::thread> threads;
  for (std::size_t k = 0; k < found.size(); ++k) {
    threads.emplace_back([&, k] {
      BatchDecoder decoder(engine_);
      Twins twins;
      twins.add(condensed(engine_, "selkv", "60%", 60, static_cast<unsigned>(k)));
      twins.add(condensed(engine_, "snapkv", "60%", 70, static_cast<unsigned>(k + 10)));
      for (unsigned s = 0; s < 5; ++s) twins.step(decoder, {0, 1}, text(2, s));
      found[k] = twins.first_difference();
    });
  }
  for (std::thread& t : threads) t.join();
  for (const std::string& difference : found) EXPECT_EQ(difference, "");
}

}  // namespace
}  // namespace precis::test
