// decode=step written down a second time, slowly: every step's attention is kept by position, and
// all sums are made anew from it, in double, whenever something is evicted. For the tests that
// compare it with the caches of sessions.
#pragma once

#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "base/allocation_guard.h"
#include "compress/method.h"
#include "engine/session_checks.h"
#include "engine/step_cache.h"
#include "kernels/rows.h"
#include "methods/hashed_uniform.h"

namespace precis::test {

using Position = std::int32_t;

// What one token's query saw: attention of each query head of the group, by position.
struct SeenStep {
  Position own = 0;
  std::map<Position, std::vector<double>> attention;
};

// Everything that a head was told, by layer and head.
struct HeadLog {
  std::uint64_t seed = 0;
  std::size_t group = 0;
  std::vector<float> prompt_scores;  // of all tokens of the prompt
  std::vector<float> prompt_mass;    // window_mass of all queries
  std::vector<SeenStep> steps;
  std::map<Position, std::vector<double>> values;  // as they came
  std::map<Position, double> scores;               // the rule's, when it was last asked
};
using Log = std::map<std::uint64_t, HeadLog>;  // by seed, which is the head's own

// Passes on to a real scorer and writes down what it is told.
class SpyScorer final : public Scorer, public StepScorer {
 public:
  SpyScorer(std::shared_ptr<const Scorer> real, std::shared_ptr<Log> log)
      : real_(std::move(real)), log_(std::move(log)) {}

  void score(HeadView& head, std::span<float> scores) const override { real_->score(head, scores); }
  std::size_t queries_needed(std::size_t n) const override { return real_->queries_needed(n); }
  const StepScorer* step() const override { return this; }

  std::size_t n_fields() const override { return real_->step()->n_fields(); }
  void carry(HeadView& head, std::span<const std::uint32_t> kept,
             const StepFields& fields) const override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      HeadLog& log = (*log_)[head.seed];
      log.seed = head.seed;
      log.group = head.group;
      log.prompt_scores.assign(head.scores, head.scores + head.n_tokens);
      if (head.n_queries == head.n_tokens) {
        const std::span<const float> mass = head.window_mass(head.n_tokens);
        log.prompt_mass.assign(mass.begin(), mass.end());
      }
    }
    real_->step()->carry(head, kept, fields);
  }
  void enter(const StepHead& head, std::size_t slot) const override {
    {
      const AllocationAllowed note("what a test writes down");
      const std::lock_guard<std::mutex> lock(mutex_);
      std::vector<double>& value = (*log_)[head.seed].values[head.positions[slot]];
      for (std::size_t c = 0; c < head.head_dim; ++c)
        value.push_back(static_cast<double>(to_float(head.values[slot * head.head_dim + c])));
    }
    real_->step()->enter(head, slot);
  }
  void observe(const StepHead& head) const override {
    {
      const AllocationAllowed note("what a test writes down");
      const std::lock_guard<std::mutex> lock(mutex_);
      HeadLog& log = (*log_)[head.seed];
      SeenStep step;
      step.own = head.positions[head.n - 1];
      EXPECT_EQ(head.n_before, log.steps.size());
      for (std::size_t i = 0; i < head.n; ++i)
        for (std::size_t g = 0; g < head.group; ++g)
          step.attention[head.positions[i]].push_back(
              static_cast<double>(head.attention[g * head.attention_stride + i]));
      log.steps.push_back(std::move(step));
    }
    real_->step()->observe(head);
  }
  void importance(const StepHead& head, std::span<float> scores) const override {
    real_->step()->importance(head, scores);
    const AllocationAllowed note("what a test writes down");
    const std::lock_guard<std::mutex> lock(mutex_);
    HeadLog& log = (*log_)[head.seed];
    log.scores.clear();
    for (std::size_t i = 0; i < head.n; ++i)
      log.scores[head.positions[i]] = static_cast<double>(scores[i]);
  }

 private:
  std::shared_ptr<const Scorer> real_;
  std::shared_ptr<Log> log_;
  mutable std::mutex mutex_;
};

// The rules, on the log of a head. Each gives the score of one entry from everything seen so far.
struct Reference {
  std::string name;
  Position n_prompt = 0;
  std::size_t window = 0;  // of scissorhands

  double sum(const HeadLog& log, Position p, double begin) const {
    double total = begin;
    for (const SeenStep& step : log.steps) {
      const auto seen = step.attention.find(p);
      if (seen == step.attention.end()) continue;
      for (const double a : seen->second) total += a;
    }
    return total;
  }
  double prompt(const std::vector<float>& of, Position p) const {
    return p < n_prompt ? static_cast<double>(of[static_cast<std::size_t>(p)]) : 0.0;
  }

  double score(const HeadLog& log, Position p) const {
    if (name == "streaming") return p;
    if (name == "h2o" || name == "cam") return sum(log, p, prompt(log.prompt_scores, p));
    if (name == "tova") {
      double total = 0;
      for (const double a : log.steps.back().attention.at(p)) total += a;
      return total / static_cast<double>(log.group);
    }
    if (name == "weightedkv") {
      const double seen_by = p < n_prompt ? n_prompt - p : 0;
      double n = seen_by;
      for (const SeenStep& step : log.steps) n += step.attention.count(p) > 0 ? 1 : 0;
      return sum(log, p, prompt(log.prompt_scores, p) * seen_by) / n;
    }
    if (name == "vatp") {
      double norm = 0;
      for (const double x : log.values.at(p)) norm += std::abs(x);
      return prompt(log.prompt_scores, p) + norm * sum(log, p, 0);
    }
    if (name == "scissorhands") return -times_below(log, p);
    if (name == "keyformer") return noisy_sum(log, p);
    ADD_FAILURE() << name;
    return 0;
  }

  double times_below(const HeadLog& log, Position p) const {
    const std::size_t length = (window + 7) / 8;
    const std::size_t part_now = (log.steps.size() - 1) / length;
    double total = 0;
    for (std::size_t s = 0; s < log.steps.size(); ++s) {
      const auto seen = log.steps[s].attention.find(p);
      if (seen == log.steps[s].attention.end() || s / length + 8 <= part_now) continue;
      const auto n = static_cast<double>(log.steps[s].attention.size());
      for (const double a : seen->second) total += a < 1 / n ? 1 : 0;
    }
    if (p >= n_prompt || part_now >= 7) return total;
    const auto n_rows = static_cast<double>(
        std::min<std::size_t>(window, static_cast<std::size_t>(n_prompt)) * log.group);
    const double before = -prompt(log.prompt_scores, p) * n_rows;
    return total + std::round(before) * static_cast<double>(7 - part_now) / 8;
  }

  double noisy_sum(const HeadLog& log, Position p) const {
    double total = prompt(log.prompt_scores, p);
    for (std::size_t s = 0; s < log.steps.size(); ++s) {
      const auto& seen = log.steps[s].attention;
      if (seen.count(p) == 0) continue;
      const double tau = 1 + 0.01 * static_cast<double>(s + 1);
      for (std::size_t g = 0; g < log.group; ++g) {
        const auto weight = [&](Position q, double a) {
          const std::uint64_t number = ((s * log.group + g) << 24) + static_cast<std::uint64_t>(q);
          const double u =
              static_cast<double>(hashed_uniform(log.seed ^ 0x6b657966u, number)) + 0x1p-25;
          const double zeta = -std::log(-std::log(u));
          return std::exp((std::log(a) + zeta) / tau);
        };
        double whole = 0;
        for (const auto& [q, rows] : seen) whole += weight(q, rows[g]);
        total += weight(p, seen.at(p)[g]) / whole;
      }
    }
    return total;
  }
};

}  // namespace precis::test
