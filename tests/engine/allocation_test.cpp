// Memory that is asked for, and memory that is refused.
//
// Steady decoding allocates nothing, on any thread, in Precis or in ggml, but for two pieces a
// graph: ggml_graph_compute begins with ggml_cpu_init, which makes and frees a small context each
// time. In release builds every call of malloc and its kin is counted here, or made to fail;
// sanitizers own those functions, and there the guard of src/base/allocation_guard.h is what fails.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "engine/batch.h"
#include "engine/layer_cache.h"
#include "engine/session_checks.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && defined(__GLIBC__)
#define PRECIS_COUNTS_MALLOC 1
#else
#define PRECIS_COUNTS_MALLOC 0
#endif

namespace {
std::atomic<bool> counting{false};
std::atomic<std::size_t> n_allocations{0};
std::atomic<std::size_t> failing{0};  // while counting, the n-th allocation fails; 0: none

// False if the allocation must fail.
[[maybe_unused]] bool note() {
  if (!counting.load(std::memory_order_relaxed)) return true;
  return ++n_allocations != failing.load(std::memory_order_relaxed);
}
}  // namespace

#if PRECIS_COUNTS_MALLOC
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

__attribute__((visibility("default"))) void* malloc(std::size_t n) {
  return note() ? __libc_malloc(n) : nullptr;
}
__attribute__((visibility("default"))) void* calloc(std::size_t n, std::size_t size) {
  return note() ? __libc_calloc(n, size) : nullptr;
}
__attribute__((visibility("default"))) void* realloc(void* p, std::size_t n) {
  return note() ? __libc_realloc(p, n) : nullptr;
}
__attribute__((visibility("default"))) void* aligned_alloc(std::size_t a, std::size_t n) {
  return note() ? __libc_memalign(a, n) : nullptr;
}
__attribute__((visibility("default"))) int posix_memalign(void** p, std::size_t a, std::size_t n) {
  *p = note() ? __libc_memalign(a, n) : nullptr;
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

#if PRECIS_COUNTS_MALLOC
TEST_P(DecodeAllocations, TheCounterSees) {
  EXPECT_GE(count([&] { condensed(60, 1); }), 10u);
}
#endif

TEST_P(DecodeAllocations, ExtendByOneToken) {
  Session session = condensed(100, 1);
  const Token token = 5;
  for (int i = 0; i < 3; ++i) session.extend({&token, 1});
  std::size_t n_with = 0;
  for (int i = 0; i < 40; ++i)
    if (count([&] { session.extend({&token, 1}); }) > kGgmlPerGraph) ++n_with;
  EXPECT_LE(n_with, most_with_allocations());
}

TEST_P(DecodeAllocations, StepsOfACacheThatKeepsItsSize) {
  for (const char* spec : {"weightedkv(recent=8) decode=step", "tova decode=step",
                           "scissorhands(recent=8) decode=step"}) {
    Session first(engine_);
    first.condense(random_tokens(100, engine_->config().n_vocab, 1), request(spec, "60%"));
    const Token token = 5;
    first.extend({&token, 1});
    Session session = first.fork();
    for (int i = 0; i < 3; ++i) session.extend({&token, 1});
    std::size_t n_with = 0;
    for (int i = 0; i < 40; ++i)
      if (count([&] { session.extend({&token, 1}); }) > kGgmlPerGraph) ++n_with;
    EXPECT_LE(n_with, most_with_allocations()) << spec;
  }
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

#if PRECIS_COUNTS_MALLOC
// What a head of a layer holds: packed rows as they are, then the tail.
std::vector<std::uint8_t> rows_of(const LayerCache& cache, std::size_t head) {
  const std::size_t d = cache.tail.shape().head_dim;
  std::vector<std::uint8_t> bytes;
  const auto add = [&](const void* from, std::size_t n) {
    const auto* p = static_cast<const std::uint8_t*>(from);
    bytes.insert(bytes.end(), p, p + n);
  };
  if (cache.packed_size() > 0) {
    const PackedView packed = cache.packed_tail[head].view();
    add(packed.keys, key_bytes(packed.types.keys, d, packed.n));
    add(packed.values, value_bytes(packed.types.values, d, packed.n));
  }
  const EntryView tail = cache.tail.head(head);
  add(tail.keys, tail.n * d * sizeof(Half));
  add(tail.values, tail.n * d * sizeof(Half));
  return bytes;
}

// 100 rows of which 64 can age, also after 64 of which half have aged before: whichever allocation
// fails, nothing is lost, and once there is memory the result is what it always is.
TEST(AgedRows, LoseNothingWithoutMemory) {
  const RowTypes types{RowType::kQ8_0, RowType::kQ4};
  const auto make = [&](std::size_t n_before) {
    LayerCache cache;
    cache.tail = TailRows({2, 32});
    for (const std::size_t n : {n_before, std::size_t{100}}) {
      const std::size_t first = cache.tail.size();
      cache.tail.grow(n);
      for (std::size_t h = 0; h < 2; ++h)
        for (std::size_t i = first * 32; i < cache.tail.size() * 32; ++i) {
          cache.tail.key_row(h, 0)[i] = to_half(std::sin(static_cast<float>(i + h)));
          cache.tail.value_row(h, 0)[i] = to_half(std::cos(static_cast<float>(i * 3 + h)));
        }
      if (n == n_before && n > 0) pack_aged_rows(cache, types);
    }
    return cache;
  };
  for (const std::size_t n_before : {0u, 64u}) {
    LayerCache expected = make(n_before);
    const std::size_t n_allocations_needed = count([&] { pack_aged_rows(expected, types); });
    ASSERT_GT(n_allocations_needed, 0u);
    ASSERT_GT(expected.packed_size(), n_before / 2);
    for (std::size_t k = 1; k <= n_allocations_needed; ++k) {
      LayerCache cache = make(n_before);
      const std::size_t n_packed = cache.packed_size();
      const std::vector<std::uint8_t> before[] = {rows_of(cache, 0), rows_of(cache, 1)};
      failing = k;
      count([&] { pack_aged_rows(cache, types); });
      failing = 0;
      ASSERT_EQ(cache.packed_size(), n_packed) << "allocation " << k;
      for (std::size_t h = 0; h < 2; ++h)
        ASSERT_EQ(rows_of(cache, h), before[h]) << "allocation " << k << ", head " << h;
      pack_aged_rows(cache, types);
      ASSERT_EQ(cache.packed_size(), expected.packed_size());
      for (std::size_t h = 0; h < 2; ++h)
        ASSERT_EQ(rows_of(cache, h), rows_of(expected, h)) << "allocation " << k;
    }
  }
}
#endif

}  // namespace
}  // namespace precis::test
