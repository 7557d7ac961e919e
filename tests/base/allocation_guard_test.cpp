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
  }
  allocate();
}

// The macro itself allocates, so guards live inside the statement.
TEST(AllocationGuard, NamesTheInnermostForbiddenScope) {
  EXPECT_DEATH(
      {
        const AllocationForbidden guard("the loop");
        allocate();
      },
      "allocation of 4 bytes in the loop");
  EXPECT_DEATH(
      {
        const AllocationForbidden guard("the loop");
        const AllocationForbidden off("nothing", false);
        const AllocationAllowed not_allowed("nothing", false);
        allocate();
      },
      "in the loop");
}
#else
TEST(AllocationGuard, IsNothingInOtherBuilds) {
  const AllocationForbidden guard("the loop");
  allocate();
}
#endif

}  // namespace
}  // namespace precis
