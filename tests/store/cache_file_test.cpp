// Sessions saved, loaded, and continued beside the ones that were saved.
#include "store/cache_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <random>

#include "store/cache_checks.h"

namespace precis::test {
namespace {

constexpr std::size_t kPrompt = 150;
constexpr std::size_t kMore = 80;

class CacheFile : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    engine_ = tiny_engine(GetParam());
    model_ = fingerprint_of(tiny_model(GetParam()));
    tokens_ = random_tokens(kPrompt + kMore, engine_->config().n_vocab, 5);
  }
  std::span<const Token> prompt() const { return std::span(tokens_).first(kPrompt); }
  std::span<const Token> more() const { return std::span(tokens_).subspan(kPrompt); }

  std::size_t global_layer() const { return engine_->compressible_indices()[0]; }

  // Saves, loads, compares, and lets both go on.
  void check(Session& session, const CacheMeta& meta, std::span<const Token> next,
             const std::string& what) {
    const std::string path = folder_.file("cache");
    save_session(session, model_, meta, path);
    LoadedSession loaded = load_session(engine_, model_, path);
    EXPECT_EQ(difference(session, loaded.session), "") << what;
    EXPECT_EQ(session.kv_bytes_full(), loaded.session.kv_bytes_full()) << what;
    EXPECT_TRUE(same_bits(session.last_logits(), loaded.session.last_logits())) << what;
    EXPECT_EQ(loaded.meta.report.method, meta.report.method);
    EXPECT_EQ(loaded.meta.report.entries, meta.report.entries);
    EXPECT_EQ(verify_cache(path).kv_bytes, session.kv_bytes()) << what;
    EXPECT_TRUE(same_bits(continue_with(session, next), continue_with(loaded.session, next)))
        << what;
    EXPECT_EQ(difference(session, loaded.session), "") << what << ", later";
    EXPECT_EQ(folder_.names().size(), 1u) << what << ": something was left behind";
  }

  ScratchFolder folder_;
  std::shared_ptr<const Engine> engine_;
  ModelFingerprint model_;
  std::vector<Token> tokens_;
};

INSTANTIATE_TEST_SUITE_P(Tiny, CacheFile,
                         testing::Values("llama", "llama-hd64", "qwen2-hd32", "gemma3",
                                         "gemma3-scaled"),
                         [](const auto& tested) {
                           std::string name = tested.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST_P(CacheFile, EveryPresetGoesOnWithTheSameBits) {
  for (const std::string& spec : engine_presets()) {
    Session session(engine_);
    const auto report = session.condense(prompt(), request(spec, "45%"));
    check(session, meta_of(report, prompt()), more().first(20), spec);
  }
}

TEST_P(CacheFile, EveryPairOfRowTypesWithTailsThatArePacked) {
  for (const RowType keys : {RowType::kF16, RowType::kQ8_0, RowType::kQ4})
    for (const RowType values : {RowType::kF16, RowType::kQ8_0, RowType::kQ4})
      for (const std::string spec : {"selkv", "reskv(validate=off,parts=0.5,gate=linear)"}) {
        const std::size_t d = engine_->config().head_dim;
        if (!fits(keys, d) || !fits(values, d)) continue;
        const std::string what = spec + " " + row_type_name(keys) + " " + row_type_name(values);
        CondenseRequest req = request(spec, "60%");
        req.rows = {keys, values};
        Session session(engine_);
        const auto report = session.condense(prompt(), req);
        session.extend(more().first(70));  // more than the 63 newest, which stay f16
        const SessionState state = session.state();
        EXPECT_EQ(state.layers[global_layer()].packed_tail.empty(), req.rows == RowTypes{});
        check(session, meta_of(report, std::span(tokens_).first(kPrompt + 70)), more().subspan(70),
              what);
      }
}

TEST_P(CacheFile, ForksAndSessionsThatWereLoadedAreSavedToo) {
  Session document(engine_);
  const auto report = document.condense(prompt(), request("snapkv", "50%"));
  Session fork = document.fork();
  fork.extend(more().first(30));
  check(fork, meta_of(report), more().subspan(30, 20), "fork");
  save_session(document, model_, meta_of(report), folder_.file("cache"));
  const Bytes first = read_bytes(folder_.file("cache"));
  const LoadedSession loaded = load_session(engine_, model_, folder_.file("cache"));
  save_session(loaded.session, model_, loaded.meta, folder_.file("cache"));
  EXPECT_EQ(first, read_bytes(folder_.file("cache")));
}

TEST_P(CacheFile, CompactPositions) {
  Session session(engine_);
  const auto report = session.condense(prompt(), request("snapkv positions=compact", "50%"));
  EXPECT_LT(session.next_position(), kPrompt);
  check(session, meta_of(report, prompt()), more().first(20), "compact");
}

TEST_P(CacheFile, TheSummaryTellsWhatWasSaved) {
  Session session(engine_);
  auto report = session.condense(prompt(), request("reskv(validate=off)", "50%"));
  report.key_errors.assign(report.entries.size(), std::numeric_limits<double>::infinity());
  CacheMeta meta = meta_of(report, prompt());
  meta.use_template = false;
  const std::string path = folder_.file("cache");
  save_session(session, model_, meta, path);
  const CacheSummary s = summarise_cache(path);
  EXPECT_EQ(s.version, kCacheVersion);
  EXPECT_EQ(s.file_bytes, std::filesystem::file_size(path));
  EXPECT_EQ(s.model.sha256, model_.sha256);
  EXPECT_EQ(s.model.arch, engine_->config().arch);
  EXPECT_EQ(s.meta.tokens, meta.tokens);
  EXPECT_EQ(s.meta.document, meta.document);
  EXPECT_FALSE(s.meta.use_template);
  EXPECT_EQ(s.meta.seed, 7u);
  EXPECT_EQ(s.meta.writer, "test");
  EXPECT_EQ(s.meta.report.keep, "50%");
  EXPECT_EQ(s.meta.report.residuals.size(), report.residuals.size());
  EXPECT_EQ(s.meta.report.residuals[0][0].error_after, report.residuals[0][0].error_after);
  EXPECT_TRUE(std::isnan(s.meta.report.key_errors[0]));
  EXPECT_EQ(s.entries, report.entries);
  EXPECT_EQ(s.kv_bytes, session.kv_bytes());
  EXPECT_EQ(s.next_position, kPrompt);
  EXPECT_EQ(s.n_tail, 0u);
  EXPECT_TRUE(s.has_logits);
}

TEST_P(CacheFile, WhatIsNotCondensedIsRefused) {
  const std::string path = folder_.file("cache");
  const auto save = [&](const Session& session, const CacheMeta& meta) {
    save_session(session, model_, meta, path);
  };
  Session session(engine_);
  const CacheMeta meta = meta_of({});
  const auto refused = [&](ErrorCode code, const char* words, const CacheMeta& m) {
    EXPECT_NE(error_of(code, [&] { save(session, m); }).find(words), std::string::npos);
  };
  refused(ErrorCode::kInvalidArgument, "holds 0 tokens", meta);
  session.extend(prompt().first(40));
  refused(ErrorCode::kInvalidArgument, "condense", meta);
  session.reset();
  session.prefill(prompt());
  refused(ErrorCode::kInvalidArgument, "holds 150 tokens", meta);
  session.reset();
  session.condense(prompt(), request("h2o(recent=8) decode=step", "60%"));
  refused(ErrorCode::kUnsupported, "decode=step", meta);
  session.reset();
  const auto report = session.condense(prompt(), request("snapkv", "60%"));
  refused(ErrorCode::kInvalidArgument, "40 tokens but 150", meta_of(report, prompt().first(40)));
  std::vector<Token> wrong(prompt().begin(), prompt().end());
  wrong[3] = static_cast<Token>(engine_->config().n_vocab);
  refused(ErrorCode::kInvalidArgument, "token 3", meta_of(report, wrong));
  CompressionReport other = report;
  other.entries[0][0] += 1;
  refused(ErrorCode::kInvalidArgument, "the report says", meta_of(other));
  other = report;
  other.entries.emplace_back();
  refused(ErrorCode::kInvalidArgument, "report", meta_of(other));
  CacheMeta long_report = meta;
  long_report.report.skipped = std::string(5 << 20, 'x');
  refused(ErrorCode::kInvalidArgument, "bytes", long_report);
  CacheMeta bytes = meta;
  bytes.document = "\xff";
  refused(ErrorCode::kInvalidArgument, "UTF-8", bytes);
  EXPECT_TRUE(folder_.names().empty());
}

TEST_P(CacheFile, ASessionThatHoldsTokensOrAnotherStateIsLeftAlone) {
  Session session(engine_);
  session.condense(prompt(), request("snapkv", "60%"));
  SessionState state = session.state();
  EXPECT_NE(error_of(ErrorCode::kInvalidArgument, [&] { session.resume(state); }).find("150"),
            std::string::npos);
  const auto refused = [&](auto change, const char* words) {
    SessionState changed = session.state();
    change(changed);
    Session fresh(engine_);
    const auto message =
        error_of(ErrorCode::kInvalidArgument, [&] { fresh.resume(std::move(changed)); });
    EXPECT_NE(message.find(words), std::string::npos) << message;
    EXPECT_EQ(fresh.next_position(), 0u);
    EXPECT_EQ(fresh.kv_bytes(), 0u);
  };
  refused([](SessionState& s) { s.layers.pop_back(); }, "layers");
  refused([](SessionState& s) { s.next_position = 0; }, "position 0");
  refused([](SessionState& s) { s.next_position = 1 << 30; }, "context");
  refused([](SessionState& s) { s.n_read = 5; }, "after 5 tokens");
  refused([](SessionState& s) { s.logits.pop_back(); }, "logits");
  refused([](SessionState& s) { s.logits[2] = NAN; }, "not finite");
  const std::size_t il = global_layer();
  refused([=](SessionState& s) { s.layers[il].frozen.reset(); }, "sliding window");
  refused([=](SessionState& s) { s.layers[il].tail.set_first_position(7); }, "the tail ends");
  refused([=](SessionState& s) { s.layers[il].tail = {}; }, "0 KV heads");
}

// Without rights that ignore permissions, and with a limit that stands for a full disk.
TEST(CacheFileWriting, AFailedWriteLeavesTheOldFile) {
  const auto engine = tiny_engine("llama");
  const auto model = fingerprint_of(tiny_model("llama"));
  Session session(engine);
  const auto tokens = random_tokens(kPrompt, engine->config().n_vocab, 5);
  const auto meta = meta_of(session.condense(tokens, request("full", "100%")));
  const ScratchFolder folder;
  const std::string path = folder.file("cache");
  const auto refused = [&](const std::string& to, const char* words) {
    const auto message = error_of(ErrorCode::kIo, [&] { save_session(session, model, meta, to); });
    EXPECT_NE(message.find(words), std::string::npos) << message;
    EXPECT_NE(message.find(to), std::string::npos) << message;
  };
  write_bytes(path, {'o', 'l', 'd'});
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit = before;
  limit.rlim_cur = 10000;
  setrlimit(RLIMIT_FSIZE, &limit);
  refused(path, "File too large");
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(read_bytes(path), (Bytes{'o', 'l', 'd'}));
  EXPECT_EQ(folder.names().size(), 1u);
  refused(folder.file(""), "not the name of a file");
  refused(folder.file("none/cache"), "No such file");
  refused(folder.file("cache/cache"), "Not a directory");
  refused("/dev/null", "not a regular file");
  refused("/proc/cache", "");
  std::filesystem::create_directory(folder.file("folder"));
  refused(folder.file("folder"), "directory");
  refused(folder.file(std::string(300, 'x')), "too long");
  error_of(ErrorCode::kIo, [&] { check_can_save(folder.file("none/cache")); });
  check_can_save(path);
  EXPECT_EQ(read_bytes(path), (Bytes{'o', 'l', 'd'}));
  save_session(session, model, meta, path);
  EXPECT_EQ(verify_cache(path).n_read, kPrompt);
  EXPECT_EQ(folder.names().size(), 2u);
}

// A child writes one of two caches in turn until it is killed.
TEST(CacheFileWriting, AKilledWriteLeavesAWholeFileOrNone) {
  const auto engine = tiny_engine("llama");
  const auto model = fingerprint_of(tiny_model("llama"));
  const auto tokens = random_tokens(kPrompt, engine->config().n_vocab, 5);
  const ScratchFolder folder;
  const std::string path = folder.file("cache");
  Session small(engine), large(engine);
  const auto small_meta = meta_of(small.condense(tokens, request("snapkv", "40%")));
  const auto large_meta = meta_of(large.condense(tokens, request("full", "100%")));
  save_session(small, model, small_meta, path);
  const Bytes first = read_bytes(path);
  save_session(large, model, large_meta, path);
  const Bytes second = read_bytes(path);
  std::mt19937 draw(1);
  std::size_t n_absent = 0, n_first = 0, n_second = 0;
  for (int i = 0; i < 200; ++i) {
    if (i % 3 == 0) std::filesystem::remove(path);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      try {
        for (;;) {
          save_session(small, model, small_meta, path);
          save_session(large, model, large_meta, path);
        }
      } catch (...) {
        _exit(1);
      }
    }
    usleep(static_cast<useconds_t>(draw() % 12000));
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
    if (!std::filesystem::exists(path)) {
      ++n_absent;
      continue;
    }
    verify_cache(path);
    const Bytes left = read_bytes(path);
    ASSERT_TRUE(left == first || left == second) << "kill " << i;
    (left == first ? n_first : n_second) += 1;
  }
  EXPECT_GT(n_absent, 0u);
  EXPECT_GT(n_first, 0u);
  EXPECT_GT(n_second, 0u);
  // A kill between the moment when the file gets a name and the one when it gets its own leaves the
  // first behind; no more than a few of 200 hit it.
  EXPECT_LT(folder.names().size(), 20u);
}

}  // namespace
}  // namespace precis::test
