#include "base/executor.h"

#include "base/allocation_guard.h"
#include "base/error.h"

namespace precis {

void throw_if_cancelled(const CancelFlag* cancel) {
  if (cancel == nullptr || !cancel->load(std::memory_order_relaxed)) return;
  const AllocationAllowed message("an error's message");
  throw Error(ErrorCode::kCancelled, "cancelled by the caller");
}

}  // namespace precis
