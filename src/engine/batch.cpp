#include "engine/batch.h"

#include <atomic>
#include <new>
#include <vector>

#include "base/allocation_guard.h"
#include "base/error.h"
#include "engine/layer_cache.h"

namespace precis {
namespace {

// Token i of the graph belongs to the cache of entry i. The work of all caches is one list, so that
// threads are busy to the end even when one session has all the entries.
class BatchAttention final : public AttentionOp {
 public:
  BatchAttention(const ModelConfig& config, std::size_t n_threads)
      : config_(config), next_task_(config.n_layers), scratch_(n_threads) {
    caches_.reserve(BatchDecoder::kMaxEntries);
  }

  void clear() { caches_.clear(); }
  void add(CacheAttention& cache) { caches_.push_back(&cache); }
  void set_cancel(const CancelFlag* cancel) { cancel_ = cancel; }
  bool take_cancelled() { return cancelled_.exchange(false); }

  void prepare(std::size_t first_layer, std::size_t last_layer, std::size_t n_tokens) override {
    PRECIS_CHECK(n_tokens == caches_.size(), n_tokens, " vs ", caches_.size());
    const AllocationAllowed growth("see CacheAttention::prepare");
    for (std::size_t i = 0; i < n_tokens; ++i) {
      try {
        caches_[i]->prepare(first_layer, last_layer, 1);
      } catch (const std::bad_alloc&) {
        throw Error(ErrorCode::kOutOfMemory,
                    concat("no memory for another token of entry ", i, " of ", n_tokens));
      }
    }
    for (std::size_t il = first_layer; il < last_layer; ++il) next_task_[il] = 0;
  }

  void store(const AttentionCall& call) noexcept override {
    for (std::size_t i = call.thread; i < call.n_tokens; i += call.n_threads)
      caches_[i]->store(part(call, i));
  }

  void attend(const AttentionCall& call) noexcept override {
    std::atomic<std::size_t>& next = next_task_[call.layer];
    std::size_t entry = 0;
    std::size_t first = 0;  // task number of the entry's first task
    std::size_t n_tasks = caches_[0]->n_attend_tasks(call.layer, 1);
    for (std::size_t task = next++;; task = next++) {
      while (task >= first + n_tasks) {
        first += n_tasks;
        if (++entry == call.n_tokens) return;
        n_tasks = caches_[entry]->n_attend_tasks(call.layer, 1);
      }
      if (cancel_ != nullptr && cancel_->load(std::memory_order_relaxed)) {
        cancelled_ = true;
        return;
      }
      caches_[entry]->attend_task(part(call, entry), task - first, scratch_[call.thread]);
    }
  }

  void finish(const AttentionCall& call) noexcept override {
    if (cancelled_) return;
    const std::size_t heads = config_.n_kv_heads;
    for (std::size_t i = call.thread; i < call.n_tokens * heads; i += call.n_threads)
      caches_[i / heads]->finish_task(part(call, i / heads), i % heads);
  }

 private:
  // The call of token i alone, on one thread.
  AttentionCall part(const AttentionCall& call, std::size_t i) const {
    const std::size_t q_width = config_.n_heads * config_.head_dim;
    const std::size_t kv_width = config_.n_kv_heads * config_.head_dim;
    AttentionCall one;
    one.layer = call.layer;
    one.n_tokens = one.n_outputs = 1;
    if (call.q != nullptr) one.q = call.q + i * q_width;
    if (call.k != nullptr) one.k = call.k + i * kv_width;
    if (call.v != nullptr) one.v = call.v + i * kv_width;
    if (call.out != nullptr) one.out = call.out + i * q_width;
    return one;
  }

  const ModelConfig& config_;
  std::vector<CacheAttention*> caches_;
  const CancelFlag* cancel_ = nullptr;
  std::atomic<bool> cancelled_{false};
  std::vector<std::atomic<std::size_t>> next_task_;  // [n_layers]
  std::vector<Scratch> scratch_;                     // [n_threads]
};

}  // namespace

struct BatchDecoder::Impl {
  std::shared_ptr<const Engine> engine;
  GraphRunner runner;
  BatchAttention attention;
  std::vector<Token> tokens;
  std::vector<std::int32_t> positions;
  std::vector<float*> logits;

  explicit Impl(std::shared_ptr<const Engine> e)
      : engine(std::move(e)),
        runner(engine->shared_model(), engine->backend()),
        attention(engine->config(), engine->backend().n_workers()) {
    tokens.reserve(kMaxEntries);
    positions.reserve(kMaxEntries);
    logits.reserve(kMaxEntries);
  }

  void check(std::span<const BatchEntry> entries) const {
    const auto refuse = [](const auto&... text) {
      throw Error(ErrorCode::kInvalidArgument, concat(text...));
    };
    if (entries.empty() || entries.size() > kMaxEntries)
      refuse("a step takes 1 to ", kMaxEntries, " sessions, not ", entries.size());
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const BatchEntry& entry = entries[i];
      PRECIS_CHECK(entry.session != nullptr, i);
      if (entry.session->engine() != engine)
        refuse("entry ", i, " of ", entries.size(), " is a session of another engine");
      for (std::size_t j = 0; j < i; ++j)
        if (entries[j].session == entry.session)
          refuse("entries ", j, " and ", i, " are the same session; it takes one token a step");
      if (entry.token < 0 || static_cast<std::size_t>(entry.token) >= engine->config().n_vocab)
        refuse("entry ", i, " of ", entries.size(), ": token ", entry.token,
               " is outside the model's vocabulary of ", engine->config().n_vocab);
    }
  }

  // Makes every session ready, in order; `n_begun` counts those that are.
  void begin(std::span<const BatchEntry> entries, std::size_t& n_begun) {
    attention.clear();
    tokens.clear();
    positions.clear();
    logits.clear();
    for (const BatchEntry& entry : entries) {
      Session& session = *entry.session;
      try {
        session.begin_token();
      } catch (const Error& error) {
        throw Error(error.code(),
                    concat("entry ", n_begun, " of ", entries.size(), ": ", error.what()));
      } catch (const std::bad_alloc&) {
        throw Error(ErrorCode::kOutOfMemory,
                    concat("no memory for the logits of entry ", n_begun, " of ", entries.size()));
      }
      ++n_begun;
      attention.add(session.token_attention());
      tokens.push_back(entry.token);
      positions.push_back(static_cast<std::int32_t>(session.next_position()));
      logits.push_back(session.token_logits());
    }
  }
};

BatchDecoder::BatchDecoder(std::shared_ptr<const Engine> engine)
    : impl_(std::make_unique<Impl>(std::move(engine))) {}
BatchDecoder::~BatchDecoder() = default;

void BatchDecoder::step(std::span<const BatchEntry> entries, const CallControl& control) {
  Impl& impl = *impl_;
  impl.check(entries);
  impl.runner.set_cancel(control.cancel);
  impl.attention.set_cancel(control.cancel);
  std::size_t n_begun = 0;
  try {
    impl.begin(entries, n_begun);
    const AllocationForbidden guard("a batched step");
    impl.runner.run_each(impl.tokens, impl.positions, impl.attention, impl.logits);
    const AllocationAllowed end("an error's message, the caller's code");
    if (impl.attention.take_cancelled())
      throw Error(ErrorCode::kCancelled, "cancelled by the caller");
    if (control.progress) control.progress({1.0, entries.size(), entries.size()});
  } catch (...) {
    for (std::size_t i = 0; i < n_begun; ++i) entries[i].session->drop_token();
    impl.attention.take_cancelled();
    throw;
  }
  const AllocationForbidden guard("a batched step");
  for (const BatchEntry& entry : entries) entry.session->commit_token();
}

}  // namespace precis
