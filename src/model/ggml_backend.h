// What the rest of src/model sees of the backend: ggml handles. Not for other folders.
#pragma once

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-cpp.h>
#include <ggml.h>

#include <mutex>
#include <vector>

#include "model/backend.h"

namespace precis {

struct Backend::Impl {
  ggml_backend_dev_t device = nullptr;
  ggml_backend_ptr backend;
  ggml_threadpool_t pool = nullptr;
  std::size_t n_threads = 1;
  std::mutex mutex;  // one graph at a time

  ~Impl();

  // Buffer types for weights, best first: repacking ones, then plain memory. As libllama orders
  // them.
  std::vector<ggml_backend_buffer_type_t> weight_buffer_types() const;
  ggml_backend_buffer_type_t plain_buffer_type() const {
    return ggml_backend_dev_buffer_type(device);
  }

  // Runs an allocated graph. Throws Error(kCancelled) if the flag stopped it, kInternal if ggml
  // failed.
  void compute(ggml_cgraph* graph, const CancelFlag* cancel);
};

}  // namespace precis
