#include "base/executor.h"

#include "base/error.h"

namespace precis {

void throw_if_cancelled(const CancelFlag* cancel) {
  if (cancel != nullptr && cancel->load(std::memory_order_relaxed))
    throw Error(ErrorCode::kCancelled, "cancelled by the caller");
}

}  // namespace precis
