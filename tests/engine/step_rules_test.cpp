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

class StepRules_ : public testing::TestWithParam<Case> {
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

INSTANTIATE_TEST_SUITE_P(Methods, StepRules_, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

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
TEST_P(StepRules_, KeepWhatTheSlowReferenceKeeps) {
  const auto engine =
      Engine::load(tiny_model("llama"), {.n_threads = 2, .matmul = MatmulMode::kSgemm});
  const auto tokens = random_tokens(kPrompt + kSteps + 7, engine->config().n_vocab, 5);
  CondenseRequest req = request(GetParam().spec, "50%");
  const auto log = std::make_shared<Log>();
  req.method.scorer = std::make_shared<const SpyScorer>(req.method.scorer, log);
  Session session(engine);
  session.condense(std::span(tokens).first(kPrompt), req);
  const std::size_t n_layers = engine->config().n_layers;
  const std::size_t n_heads = engine->config().n_kv_heads;
  ASSERT_EQ(log->size(), n_layers * n_heads);

  // Seeds by layer and head, as the driver mixes them: the log knows only the seed.
  std::vector<std::vector<OwnHead>> own(n_layers, std::vector<OwnHead>(n_heads));
  std::vector<std::vector<const HeadLog*>> logs(n_layers, std::vector<const HeadLog*>(n_heads));
  for (std::size_t il = 0; il < n_layers; ++il)
    for (std::size_t h = 0; h < n_heads; ++h) {
      const StepCache& cache = *session.step_cache(il);
      OwnHead& head = own[il][h];
      HeadLog& head_log = log->at(cache.seed(h));
      logs[il][h] = &head_log;
      head.kept = {cache.positions(h).begin(), cache.positions(h).end()};
      head.capacity = head.kept.size();
      ASSERT_LT(head.capacity, kPrompt);
      head.values = values_of(cache, h);
      head_log.values = head.values;
      for (Position p = 0; p < static_cast<Position>(kPrompt) && !head_log.prompt_mass.empty();
           ++p) {
        // One-shot WeightedKV: an evicted token's attention goes to the next kept one.
        const auto to = std::string(GetParam().name) == "weightedkv" ? head.kept.lower_bound(p)
                                                                     : head.kept.find(p);
        if (to != head.kept.end())
          head.mass[*to] += static_cast<double>(head_log.prompt_mass[static_cast<std::size_t>(p)]);
      }
    }

  std::size_t at = kPrompt;
  const auto step = [&](std::size_t n) {
    session.extend(std::span(tokens).subspan(at, n));
    at += n;
    const auto now = static_cast<Position>(at) - 1;
    for (std::size_t il = 0; il < n_layers; ++il) {
      std::vector<OwnHead*> all;
      for (std::size_t h = 0; h < n_heads; ++h) {
        all.push_back(&own[il][h]);
        for (Position p = now + 1 - static_cast<Position>(n); p <= now; ++p) {
          own[il][h].kept.insert(p);
          own[il][h].values[p] = logs[il][h]->values.at(p);
        }
      }
      for (std::size_t h = 0; h < n_heads; ++h) {
        OwnHead& head = own[il][h];
        while (head.kept.size() > head.capacity) {
          const Position gone = GetParam().is_shared ? lowest(logs[il], all, now)
                                                     : lowest({logs[il][h]}, {&head}, now);
          for (std::size_t other = 0; other < n_heads; ++other) {
            if (other != h && !GetParam().is_shared) continue;
            own[il][other].kept.erase(gone);
            merge(*logs[il][other], own[il][other], gone);
            own[il][other].values.erase(gone);
          }
        }
        const StepCache& cache = *session.step_cache(il);
        ASSERT_EQ(std::set<Position>(cache.positions(h).begin(), cache.positions(h).end()),
                  head.kept)
            << "layer " << il << " head " << h << " token " << now;
        expect_close(values_of(cache, h), head.values);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  };
  for (std::size_t t = 0; t < kSteps; ++t) {
    step(1);
    ASSERT_FALSE(HasFatalFailure());
  }
  step(7);
  if (std::string(GetParam().name) == "cam") {
    EXPECT_GT(n_merged_, 20u);
  }
}

}  // namespace
}  // namespace precis::test
