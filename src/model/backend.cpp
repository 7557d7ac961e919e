#include "model/backend.h"

#include <ggml-cpu.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <string>
#include <thread>

#include "base/allocation_guard.h"
#include "base/error.h"
#include "model/ggml_backend.h"
#include "model/ggml_log.h"

#ifndef PRECIS_BACKEND_DIR
#define PRECIS_BACKEND_DIR ""
#endif

namespace precis {
namespace {

// Folders that may hold ggml's CPU modules (libggml-cpu-<variant>.so), in order: the user's word,
// beside an installed binary or library, the build tree.
std::vector<std::string> module_folders() {
  std::vector<std::string> folders;
  if (const char* chosen = std::getenv("PRECIS_BACKEND_DIR")) folders.emplace_back(chosen);
  std::error_code ignored;
  const auto exe = std::filesystem::read_symlink("/proc/self/exe", ignored);
  if (!ignored) folders.push_back((exe.parent_path().parent_path() / "lib" / "precis").string());
  if (*PRECIS_BACKEND_DIR != '\0') folders.emplace_back(PRECIS_BACKEND_DIR);
  return folders;
}

ggml_backend_dev_t find_cpu_device() {
  LogCapture log;
  ggml_backend_dev_t device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  std::string searched;
  for (const std::string& folder : module_folders()) {
    if (device != nullptr) break;
    searched += (searched.empty() ? "" : ", ") + folder;
    if (!std::filesystem::is_directory(folder)) continue;
    // Loads the best variant that this CPU can run (each module scores itself).
    ggml_backend_load_all_from_path(folder.c_str());
    device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  }
  if (device == nullptr)
    throw Error(ErrorCode::kUnsupported,
                concat("no ggml CPU module for this processor was found (searched: ", searched,
                       "); set PRECIS_BACKEND_DIR to the folder with libggml-cpu-*.so"));
  return device;
}

template <class Function>
Function* device_function(ggml_backend_dev_t device, const char* name) {
  void* address = ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), name);
  PRECIS_CHECK(address != nullptr, "ggml CPU backend lacks ", name);
  return reinterpret_cast<Function*>(address);
}

std::size_t cgroup_cores() {
  std::FILE* file = std::fopen("/sys/fs/cgroup/cpu.max", "r");
  if (file == nullptr) return SIZE_MAX;
  long long quota = 0;
  long long period = 0;
  const int n = std::fscanf(file, "%lld %lld", &quota, &period);
  std::fclose(file);
  if (n != 2 || quota <= 0 || period <= 0) return SIZE_MAX;
  return static_cast<std::size_t>(std::max(1LL, (quota + period - 1) / period));
}

}  // namespace

std::size_t available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::size_t n = std::max(1u, std::thread::hardware_concurrency());
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    n = static_cast<std::size_t>(std::max(1, CPU_COUNT(&set)));
  return std::min(n, cgroup_cores());
}

Backend::Backend(std::size_t n_threads)
    : n_threads_(std::min<std::size_t>(n_threads == 0 ? available_cores() : n_threads,
                                       GGML_MAX_N_THREADS)),
      impl_(std::make_unique<Impl>()) {
  impl_->device = find_cpu_device();
  impl_->backend.reset(ggml_backend_dev_init(impl_->device, nullptr));
  if (!impl_->backend) throw Error(ErrorCode::kInternal, "ggml could not start its CPU backend");
  impl_->n_threads = n_threads_;
  ggml_threadpool_params params;
  ggml_threadpool_params_init(&params, static_cast<int>(n_threads_));
  impl_->pool =
      device_function<decltype(ggml_threadpool_new)>(impl_->device, "ggml_threadpool_new")(&params);
  if (impl_->pool == nullptr)
    throw Error(ErrorCode::kOutOfMemory, concat("could not start ", n_threads_, " threads"));
  using SetThreads = void(ggml_backend_t, int);
  device_function<SetThreads>(impl_->device, "ggml_backend_set_n_threads")(
      impl_->backend.get(), static_cast<int>(n_threads_));
  device_function<decltype(ggml_backend_cpu_set_threadpool)>(
      impl_->device, "ggml_backend_cpu_set_threadpool")(impl_->backend.get(), impl_->pool);
}

Backend::~Backend() = default;

Backend::Impl::~Impl() {
  backend.reset();
  if (pool != nullptr)
    device_function<decltype(ggml_threadpool_free)>(device, "ggml_threadpool_free")(pool);
}

std::vector<ggml_backend_buffer_type_t> Backend::Impl::weight_buffer_types() const {
  std::vector<ggml_backend_buffer_type_t> types;
  using GetExtra = ggml_backend_buffer_type_t*(ggml_backend_dev_t);
  if (void* address = ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device),
                                                        "ggml_backend_dev_get_extra_bufts"))
    for (auto* extra = reinterpret_cast<GetExtra*>(address)(device);
         extra != nullptr && *extra != nullptr; ++extra)
      types.push_back(*extra);
  types.push_back(plain_buffer_type());
  return types;
}

void Backend::Impl::compute(ggml_cgraph* graph, const CancelFlag* cancel) {
  const std::lock_guard lock(mutex);
  throw_if_cancelled(cancel);
  // ggml asks after each node, on its first thread.
  const auto raised = [](void* data) {
    const auto* flag = static_cast<const CancelFlag*>(data);
    return flag != nullptr && flag->load(std::memory_order_relaxed);
  };
  using SetAbort = void(ggml_backend_t, ggml_abort_callback, void*);
  device_function<SetAbort>(device, "ggml_backend_set_abort_callback")(
      backend.get(), cancel == nullptr ? nullptr : static_cast<ggml_abort_callback>(raised),
      const_cast<CancelFlag*>(cancel));
  const ggml_status status = ggml_backend_graph_compute(backend.get(), graph);
  const AllocationAllowed message("an error's message");
  if (status == GGML_STATUS_ABORTED) throw_if_cancelled(cancel);
  // A cancelled attention node leaves garbage behind even when it was the graph's last node.
  if (status == GGML_STATUS_SUCCESS) throw_if_cancelled(cancel);
  if (status == GGML_STATUS_ALLOC_FAILED)
    throw Error(ErrorCode::kOutOfMemory, "ggml ran out of memory in a graph");
  if (status != GGML_STATUS_SUCCESS)
    throw Error(ErrorCode::kInternal, concat("ggml failed: ", ggml_status_to_string(status)));
}

namespace {

struct TaskList {
  const std::function<void(std::size_t, std::size_t)>* task;
  std::size_t n_tasks;
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
};

void run_task_list(ggml_tensor*, int ith, int, void* data) noexcept {
  auto* list = static_cast<TaskList*>(data);
  for (std::size_t i = list->next++; i < list->n_tasks; i = list->next++) {
    try {
      (*list->task)(i, static_cast<std::size_t>(ith));
    } catch (...) {
      const std::lock_guard lock(list->mutex);
      if (!list->failure) list->failure = std::current_exception();
      list->next = list->n_tasks;
    }
  }
}

}  // namespace

void Backend::run(std::size_t n_tasks, const std::function<void(std::size_t, std::size_t)>& task) {
  if (n_tasks == 0) return;
  TaskList list{&task, n_tasks, {}, {}, {}};
  // One custom node: every thread of the pool enters it and takes tasks until none is left.
  ggml_context_ptr context(ggml_init(
      {ggml_tensor_overhead() * 2 + ggml_graph_overhead_custom(4, false) + 64, nullptr, false}));
  PRECIS_CHECK(context);
  ggml_tensor* node = ggml_custom_4d(context.get(), GGML_TYPE_F32, 1, 1, 1, 1, nullptr, 0,
                                     run_task_list, GGML_N_TASKS_MAX, &list);
  ggml_cgraph* graph = ggml_new_graph_custom(context.get(), 4, false);
  ggml_build_forward_expand(graph, node);
  impl_->compute(graph, nullptr);
  if (list.failure) std::rethrow_exception(list.failure);
}

std::string Backend::description() const {
  return concat(ggml_backend_dev_description(impl_->device), ", ", n_threads_, " threads");
}

}  // namespace precis
