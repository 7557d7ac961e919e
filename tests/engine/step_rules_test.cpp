// decode=step of every method that has it against a second, slow way of doing it
// (step_reference.h), token by token: what a layer keeps, its scores, and what merging makes of the
// values. Both are given the attention that the session's kernels report, which is itself compared
// with plain sums over the cached keys in tests/kernels.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/step_reference.h"

namespace precis::test {
namespace {

struct Case {
  const char* name;
  const char* spec;
  std::size_t n_recent;
  std::size_t n_sinks;
  bool is_shared = false;  // all heads evict the same
};

const Case kCases[] = {
    {"streaming", "streaming(recent=4,sinks=2) decode=step", 4, 2},
    {"h2o", "h2o(recent=4) decode=step", 4, 0},
    {"tova", "tova decode=step", 1, 0, true},
    {"scissorhands", "scissorhands(window=20,recent=3) decode=step", 3, 0},
    {"vatp", "vatp(recent=4,sinks=3) decode=step", 4, 3},
    {"keyformer", "keyformer(recent=4) decode=step", 4, 0},
    {"cam", "cam(recent=4,sinks=2,share=5) decode=step", 4, 2},
    {"weightedkv", "weightedkv(recent=4,sinks=2) decode=step", 4, 2},
};

constexpr std::size_t kPrompt = 48;
constexpr std::size_t kSteps = 60;

using Values = std::map<Position, std::vector<double>>;

// A head as the reference has it.
struct OwnHead {
  std::set<Position> kept;
  std::size_t capacity = 0;
  Values values;
  std::map<Position, double> mass;   // of WeightedKV and CaM when decoding began
  std::map<Position, double> taken;  // WeightedKV: what merging added to the mass
};

class StepFixture : public testing::TestWithParam<Case> {
 protected:
  // Attention that an entry has in merges.
  double mass_of(const HeadLog& log, const OwnHead& own, Position p) const {
    double total = own.mass.count(p) > 0 ? own.mass.at(p) : 0.0;
    for (const SeenStep& step : log.steps)
      if (step.attention.count(p) > 0)
        for (const double a : step.attention.at(p)) total += a;
    return total + (own.taken.count(p) > 0 ? own.taken.at(p) : 0.0);
  }

  static double to_f16(double x) {
    return static_cast<double>(to_float(to_half(static_cast<float>(x))));
  }

  void merge(const HeadLog& log, OwnHead& own, Position evicted) const {
    const std::string name = GetParam().name;
    std::vector<Position> next(own.kept.upper_bound(evicted), own.kept.end());
    if (next.empty()) return;
    const std::vector<double> from = own.values.at(evicted);
    if (name == "weightedkv") {
      const double a = mass_of(log, own, evicted);
      const double b = mass_of(log, own, next[0]);
      std::vector<double>& into = own.values.at(next[0]);
      for (std::size_t c = 0; c < from.size(); ++c)
        into[c] = to_f16((a * from[c] + b * into[c]) / (a + b));
      own.taken[next[0]] += a;
    }
    if (name == "cam") {
      next.resize(std::min<std::size_t>(next.size(), 5));
      double mean = 0;
      for (const Position p : next) mean += mass_of(log, own, p) / static_cast<double>(next.size());
      const double draw =
          static_cast<double>(hashed_uniform(log.seed, static_cast<std::uint64_t>(evicted)));
      if (mass_of(log, own, evicted) <= draw * mean) return;
      ++n_merged_;
      for (const Position p : next)
        for (std::size_t c = 0; c < from.size(); ++c)
          own.values.at(p)[c] =
              to_f16(own.values.at(p)[c] + from[c] / static_cast<double>(next.size()));
    }
  }

  // The entry that goes: the lowest score of those that are not protected, the later of equals.
  Position lowest(const std::vector<const HeadLog*>& logs, const std::vector<OwnHead*>& heads,
                  Position now) const {
    const Reference reference{GetParam().name, kPrompt, 20};
    Position found = -1;
    double best = 0;
    for (const Position p : heads[0]->kept) {
      const bool is_protected = p < static_cast<Position>(GetParam().n_sinks) ||
                                p > now - static_cast<Position>(GetParam().n_recent);
      if (is_protected) continue;
      double score = 0;
      for (const HeadLog* log : logs) score += reference.score(*log, p);
      if (found < 0 || score <= best) {
        found = p;
        best = score;
      }
    }
    EXPECT_GE(found, 0);
    return found;
  }

  mutable std::size_t n_merged_ = 0;
};

Values values_of(const StepCache& cache, std::size_t head) {
  Values out;
  const EntryView rows = cache.head(head);
  const std::size_t d = cache.shape().head_dim;
  for (std::size_t i = 0; i < rows.n; ++i)
    for (std::size_t c = 0; c < d; ++c)
      out[cache.positions(head)[i]].push_back(
          static_cast<double>(to_float(rows.values[i * d + c])));
  return out;
}

void expect_close(const Values& actual, const Values& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [p, row] : expected)
    for (std::size_t c = 0; c < row.size(); ++c)
      ASSERT_NEAR(actual.at(p)[c], row[c], 0x1p-9 * std::abs(row[c]) + 1e-5) << p << " " << c;
}

// The whole run on one model: after the prompt, tokens one by one, then a few at once.
class StepRun : public StepFixture {
 protected:
  // Takes over what the prompt left.
  void begin(const Session& session) {
    for (std::size_t il = 0; il < n_layers_; ++il)
      for (std::size_t h = 0; h < n_heads_; ++h) {
        const StepCache& cache = *session.step_cache(il);
        OwnHead& head = own_[il][h];
        HeadLog& log = log_->at(cache.seed(h));  // the log knows layer and head by their seed
        logs_[il][h] = &log;
        head.kept = {cache.positions(h).begin(), cache.positions(h).end()};
        head.capacity = head.kept.size();
        ASSERT_LT(head.capacity, kPrompt);
        log.values = head.values = values_of(cache, h);
        for (std::size_t p = 0; p < log.prompt_mass.size(); ++p) {
          // One-shot WeightedKV: an evicted token's attention goes to the next kept one.
          const auto token = static_cast<Position>(p);
          const auto to = std::string(GetParam().name) == "weightedkv"
                              ? head.kept.lower_bound(token)
                              : head.kept.find(token);
          if (to != head.kept.end()) head.mass[*to] += static_cast<double>(log.prompt_mass[p]);
        }
      }
  }

  // n more tokens came, the last of them at position `now`.
  void follow(const Session& session, std::size_t il, Position now, std::size_t n) {
    std::vector<OwnHead*> all;
    for (std::size_t h = 0; h < n_heads_; ++h) {
      all.push_back(&own_[il][h]);
      for (Position p = now + 1 - static_cast<Position>(n); p <= now; ++p) {
        own_[il][h].kept.insert(p);
        own_[il][h].values[p] = logs_[il][h]->values.at(p);
      }
    }
    for (std::size_t h = 0; h < n_heads_; ++h) {
      OwnHead& head = own_[il][h];
      while (head.kept.size() > head.capacity) {
        const Position gone = GetParam().is_shared ? lowest(logs_[il], all, now)
                                                   : lowest({logs_[il][h]}, {&head}, now);
        for (std::size_t other = 0; other < n_heads_; ++other) {
          if (other != h && !GetParam().is_shared) continue;
          own_[il][other].kept.erase(gone);
          merge(*logs_[il][other], own_[il][other], gone);
          own_[il][other].values.erase(gone);
        }
      }
      const StepCache& cache = *session.step_cache(il);
      ASSERT_EQ(std::set<Position>(cache.positions(h).begin(), cache.positions(h).end()), head.kept)
          << "layer " << il << " head " << h << " token " << now;
      expect_close(values_of(cache, h), head.values);
    }
  }

  const std::shared_ptr<const Engine> engine_ =
      Engine::load(tiny_model("llama"), {.n_threads = 2, .matmul = MatmulMode::kSgemm});
  const std::size_t n_layers_ = engine_->config().n_layers;
  const std::size_t n_heads_ = engine_->config().n_kv_heads;
  const std::shared_ptr<Log> log_ = std::make_shared<Log>();
  std::vector<std::vector<OwnHead>> own_{n_layers_, std::vector<OwnHead>(n_heads_)};
  std::vector<std::vector<const HeadLog*>> logs_{n_layers_, std::vector<const HeadLog*>(n_heads_)};
};

INSTANTIATE_TEST_SUITE_P(Methods, StepRun, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(StepRun, KeepsWhatTheSlowReferenceKeeps) {
  const auto tokens = random_tokens(kPrompt + kSteps + 7, engine_->config().n_vocab, 5);
  CondenseRequest req = request(GetParam().spec, "50%");
  req.method.scorer = std::make_shared<const SpyScorer>(req.method.scorer, log_);
  Session session(engine_);
  session.condense(std::span(tokens).first(kPrompt), req);
  ASSERT_EQ(log_->size(), n_layers_ * n_heads_);
  begin(session);
  std::size_t at = kPrompt;
  for (std::size_t i = 0; i <= kSteps && !HasFatalFailure(); ++i) {
    const std::size_t n = i < kSteps ? 1 : 7;
    session.extend(std::span(tokens).subspan(at, n));
    at += n;
    for (std::size_t il = 0; il < n_layers_ && !HasFatalFailure(); ++il)
      follow(session, il, static_cast<Position>(at) - 1, n);
  }
  if (std::string(GetParam().name) == "cam") {
    EXPECT_GT(n_merged_, 20u);
  }
}

}  // namespace
}  // namespace precis::test
