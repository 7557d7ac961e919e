#include "eval/turns.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "eval/read_bandwidth.h"

namespace precis {
namespace {

// A clock that only work moves.
struct FakeClock {
  double now = 100;
  Clock clock() {
    return [this] { return now; };
  }
};

TEST(Turns, TakesTurnsAndTimesOnlyTheRun) {
  FakeClock time;
  std::string order;
  const auto contender = [&](char name, double seconds) {
    return Contender{[&order, &time] {
                       order += '(';
                       time.now += 1000;
                     },
                     [&order, &time, name, seconds] {
                       order += name;
                       time.now += seconds;
                     },
                     [&order, &time] {
                       order += ')';
                       time.now += 500;
                     }};
  };
  const std::vector<Contender> both = {contender('A', 2), contender('B', 0.5)};
  std::vector<std::pair<std::size_t, std::size_t>> told;
  const auto seconds = measure_in_turns(
      both, {1, 2, [&](std::size_t done, std::size_t total) { told.emplace_back(done, total); }},
      time.clock());
  EXPECT_EQ(order, "(A)(B)(A)(B)(A)(B)");
  EXPECT_EQ(seconds, (std::vector<std::vector<double>>{{2, 2}, {0.5, 0.5}}));
  EXPECT_EQ(told, (std::vector<std::pair<std::size_t, std::size_t>>{{1, 3}, {2, 3}, {3, 3}}));
}

TEST(Turns, TheWarmUpIsNotReported) {
  FakeClock time;
  double next = 8;
  const Contender faster{{},
                         [&] {
                           time.now += next;
                           next /= 2;
                         },
                         {}};
  EXPECT_EQ(measure_in_turns(std::span(&faster, 1), {2, 3, {}}, time.clock()).front(),
            (std::vector<double>{2, 1, 0.5}));
}

TEST(Turns, ErrorsEndTheMeasurement) {
  FakeClock time;
  const Contender broken{{}, [] { throw std::runtime_error("no"); }, {}};
  EXPECT_THROW(measure_in_turns(std::span(&broken, 1), {0, 1, {}}, time.clock()),
               std::runtime_error);
}

// Counts the tasks; each "takes" a tenth of a second on the fake clock.
class CountingExecutor final : public Executor {
 public:
  explicit CountingExecutor(FakeClock& time) : time_(time) {}
  std::size_t n_workers() const override { return 3; }
  void run(std::size_t n_tasks,
           const std::function<void(std::size_t, std::size_t)>& task) override {
    for (std::size_t i = 0; i < n_tasks; ++i) task(i, i % 3);
    time_.now += n_runs_++ == 1 ? 0.05 : 0.1;
  }
  std::size_t n_runs_ = 0;

 private:
  FakeClock& time_;
};

// 10 MiB are 3 chunks of 4 MiB: 12582912 bytes in 0.1 s, one pass in half of that.
TEST(ReadBandwidth, IsBytesOverTime) {
  FakeClock time;
  CountingExecutor executor(time);
  const ReadBandwidth found = measure_read_bandwidth(executor, 10 << 20, 3, time.clock());
  EXPECT_EQ(executor.n_runs_, 4u);  // one pass warms up
  EXPECT_NEAR(found.best_gb_s, 0.25165824, 1e-9);
  EXPECT_NEAR(found.median_gb_s, 0.12582912, 1e-9);
}

TEST(ReadBandwidth, TheBufferIsFarLargerThanTheCache) {
  EXPECT_GE(probe_bytes(), std::size_t{256} << 20);
}

}  // namespace
}  // namespace precis
