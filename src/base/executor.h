// Runs independent tasks, possibly on several threads. The engine implements it on the thread pool
// that also runs the model, so that there is never a second pool.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>

namespace precis {

class Executor {
 public:
  virtual ~Executor() = default;

  // Number of threads that may call a task at once; a worker index is below it.
  virtual std::size_t n_workers() const = 0;

  // Calls task(index, worker) once for each index in [0, n_tasks), in any order and on any thread,
  // and returns when all have ended. The first exception thrown by a task is rethrown here after
  // the others have ended; tasks not yet started are then skipped.
  virtual void run(std::size_t n_tasks,
                   const std::function<void(std::size_t index, std::size_t worker)>& task) = 0;
};

// Runs every task on the calling thread. For tests and tools.
class SerialExecutor final : public Executor {
 public:
  std::size_t n_workers() const override { return 1; }
  void run(std::size_t n_tasks,
           const std::function<void(std::size_t, std::size_t)>& task) override {
    for (std::size_t i = 0; i < n_tasks; ++i) task(i, 0);
  }
};

// A flag that another thread raises to stop work. Null pointers mean "never".
using CancelFlag = std::atomic<bool>;

// Throws Error(kCancelled) if the flag is raised.
void throw_if_cancelled(const CancelFlag* cancel);

}  // namespace precis
