#include "base/allocation_guard.h"

#include <gtest/gtest.h>

#include <memory>

namespace precis {
namespace {

// The optimiser may drop a pair of new and delete that nobody sees.
void allocate() {
  const auto memory = std::make_unique<int>(1);
  asm volatile("" : : "r"(memory.get()) : "memory");
}

#ifdef PRECIS_ALLOCATION_GUARD
TEST(AllocationGuard, AbortsOnlyWhereForbidden) {
  allocate();
  {
    const AllocationForbidden guard("the loop");
    {
      const AllocationAllowed scope("growth");
      allocate();
      EXPECT_DEATH(
          {
            const AllocationForbidden inner("the inner loop");
            allocate();
          },
          "allocation of 4 bytes in the inner loop");
      allocate();
    }
    EXPECT_DEATH(allocate(), "allocation of 4 bytes in the loop");
    const AllocationForbidden off("nothing", false);
    EXPECT_DEATH(allocate(), "in the loop");
  }
  allocate();
}
#else
TEST(AllocationGuard, IsNothingInOtherBuilds) {
  const AllocationForbidden guard("the loop");
  allocate();
}
#endif

}  // namespace
}  // namespace precis
