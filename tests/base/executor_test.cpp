#include "base/executor.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <stdexcept>
#include <vector>

#include "base/error.h"

namespace precis {
namespace {

TEST(SerialExecutor, RunsEveryIndexOnceAsWorkerZero) {
  SerialExecutor executor;
  EXPECT_EQ(executor.n_workers(), 1u);
  std::vector<int> calls(17);
  executor.run(calls.size(), [&](std::size_t index, std::size_t worker) {
    EXPECT_EQ(worker, 0u);
    ++calls[index];
  });
  EXPECT_EQ(calls, std::vector<int>(17, 1));
  executor.run(0, [](std::size_t, std::size_t) { FAIL(); });
}

TEST(SerialExecutor, RethrowsAndSkipsTheRest) {
  SerialExecutor executor;
  int calls = 0;
  EXPECT_THROW(executor.run(5,
                            [&](std::size_t index, std::size_t) {
                              ++calls;
                              if (index == 2) throw std::out_of_range("2");
                            }),
               std::out_of_range);
  EXPECT_EQ(calls, 3);
}

TEST(Cancel, ThrowsOnlyWhenRaised) {
  CancelFlag flag{false};
  EXPECT_NO_THROW(throw_if_cancelled(nullptr));
  EXPECT_NO_THROW(throw_if_cancelled(&flag));
  flag = true;
  try {
    throw_if_cancelled(&flag);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCancelled);
  }
}

}  // namespace
}  // namespace precis
