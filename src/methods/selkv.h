// The routing step of SelKV on its own, so that it can be inspected and checked.
#pragma once

#include <cstdint>
#include <vector>

#include "compress/stage.h"

namespace precis {

enum class SelkvGate { kCosine, kOne, kZero };

// Where each evicted token of a head goes (SelKV Eq. 3) and how much of it (Eq. 4).
struct SelkvRoutes {
  static constexpr std::uint32_t kDropped = 0xffffffffu;
  std::vector<std::uint32_t> tokens;  // evicted tokens, ascending
  std::vector<std::uint32_t> slots;   // index into HeadPlan::kept of the target, or kDropped
  std::vector<float> gates;           // gamma in [0, 1]; 0 for dropped tokens
};

// REQUIRES: head holds the queries of the whole prompt; block > 0.
SelkvRoutes route_evicted(HeadView& head, const HeadPlan& plan, std::size_t block, SelkvGate gate);

}  // namespace precis
