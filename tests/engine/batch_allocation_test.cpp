// Steady decoding allocates nothing, on any thread, in Precis or in ggml, but for two pieces a
// graph: ggml_graph_compute begins with ggml_cpu_init, which makes and frees a small context each
// time. In release builds every call of malloc and its kin is counted here; sanitizers own those
// functions, and there the guard of src/base/allocation_guard.h is what fails.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>

#include "engine/batch.h"
#include "engine/session_checks.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && defined(__GLIBC__)
#define PRECIS_COUNTS_MALLOC 1
#else
#define PRECIS_COUNTS_MALLOC 0
#endif

namespace {
std::atomic<bool> counting{false};
std::atomic<std::size_t> n_allocations{0};

[[maybe_unused]] void note() {
  if (counting.load(std::memory_order_relaxed)) ++n_allocations;
}
}  // namespace

#if PRECIS_COUNTS_MALLOC
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

__attribute__((visibility("default"))) void* malloc(std::size_t n) {
  note();
  return __libc_malloc(n);
}
__attribute__((visibility("default"))) void* calloc(std::size_t n, std::size_t size) {
  note();
  return __libc_calloc(n, size);
}
__attribute__((visibility("default"))) void* realloc(void* p, std::size_t n) {
  note();
  return __libc_realloc(p, n);
}
__attribute__((visibility("default"))) void* aligned_alloc(std::size_t a, std::size_t n) {
  note();
  return __libc_memalign(a, n);
}
__attribute__((visibility("default"))) int posix_memalign(void** p, std::size_t a, std::size_t n) {
  note();
  *p = __libc_memalign(a, n);
  return *p != nullptr ? 0 : 12;
}
}
#endif

namespace precis::test {
namespace {

constexpr std::size_t kGgmlPerGraph = 2;

// Allocations during f.
template <class F>
std::size_t count(F&& f) {
  n_allocations = 0;
  counting = true;
  f();
  counting = false;
  return n_allocations;
}

class DecodeAllocations : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { engine_ = Engine::load(tiny_model(GetParam()), {.n_threads = 1}); }
  Session condensed(std::size_t n, unsigned seed) const {
    Session session(engine_);
    session.condense(random_tokens(n, engine_->config().n_vocab, seed), request("selkv", "60%"));
    return session;
  }
  // Tails have room for 64 tokens when they begin, so that 40 need no growth; gemma3's sliding
  // layers of 16 rows move their rows every 16 tokens, and grow after it.
  std::size_t most_with_allocations() const {
    return engine_->config().window > 0 ? 2 * (40 / engine_->config().window + 1) : 0;
  }
  std::shared_ptr<const Engine> engine_;
};

INSTANTIATE_TEST_SUITE_P(Models, DecodeAllocations, testing::Values("llama", "gemma3", "qwen2"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(DecodeAllocations, TheCounterSees) {
  if (!PRECIS_COUNTS_MALLOC) GTEST_SKIP() << "a sanitizer owns malloc";
  EXPECT_GE(count([&] { condensed(60, 1); }), 10u);
}

TEST_P(DecodeAllocations, ExtendByOneToken) {
  Session session = condensed(100, 1);
  const Token token = 5;
  for (int i = 0; i < 3; ++i) session.extend({&token, 1});
  std::size_t n_with = 0;
  for (int i = 0; i < 40; ++i)
    if (count([&] { session.extend({&token, 1}); }) > kGgmlPerGraph) ++n_with;
  EXPECT_LE(n_with, most_with_allocations());
}

TEST_P(DecodeAllocations, BatchedStepsOfChangingSize) {
  BatchDecoder decoder(engine_);
  std::vector<Session> sessions;
  for (unsigned i = 0; i < 8; ++i) sessions.push_back(condensed(60 + 10 * i, i));
  std::vector<BatchEntry> entries;
  for (Session& session : sessions) entries.push_back({&session, 5});
  const auto some = [&](std::size_t n) { return std::span<const BatchEntry>(entries).first(n); };
  // The largest first: a larger step than ever drops the graphs of the smaller ones.
  for (const std::size_t n : {8, 3, 5}) decoder.step(some(n));
  std::size_t n_with = 0;
  for (int i = 0; i < 40; ++i)
    if (count([&] { decoder.step(some(i % 3 == 0 ? 8 : i % 3 == 1 ? 3 : 5)); }) > kGgmlPerGraph)
      ++n_with;
  // Sessions that were in fewer steps trim at other times: three groups.
  EXPECT_LE(n_with, 3 * most_with_allocations());
}

}  // namespace
}  // namespace precis::test
