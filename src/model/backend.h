// The compute backend: ggml's CPU device, one persistent pool of threads for graphs and for
// Executor tasks. A new device is one more implementation of this interface's private part; nothing
// outside src/model knows ggml.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>

#include "base/executor.h"

namespace precis {

class Backend final : public Executor {
 public:
  // n_threads 0: one per core this process may use. Throws Error(kUnsupported) if no CPU backend
  // can be loaded or the CPU lacks what Precis needs (the message names the missing feature).
  explicit Backend(std::size_t n_threads);
  ~Backend() override;

  std::size_t n_workers() const override { return n_threads_; }
  void run(std::size_t n_tasks,
           const std::function<void(std::size_t index, std::size_t worker)>& task) override;

  // Name of the loaded variant and device, for reports.
  std::string description() const;

  struct Impl;
  Impl& impl() const { return *impl_; }

 private:
  std::size_t n_threads_ = 1;
  std::unique_ptr<Impl> impl_;
};

// Cores this process may run on (affinity mask and cgroup quota respected), at least 1.
std::size_t available_cores();

}  // namespace precis
