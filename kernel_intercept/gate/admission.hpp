// The decision before a launch: at once from what is in memory, or after a bounded wait.
#pragma once

#include <cstdint>

#include "kernel_intercept/gate/gate.hpp"
#include "kernel_intercept/gate/link.hpp"

namespace explsched::gate {

// Bound of the time a launch is held up; callers are promised 50 ms, of which this leaves some for waking up.
constexpr std::uint64_t kLongestWaitNs = 45'000'000;

// Whether the manager has shown life lately: within three of its longest recent beats, at least 30 ms and at
// most 40 ms.
bool manager_alive(const shared::Control& control, std::uint64_t now_ns) noexcept;

Admission admit_managed(Link& link, shared::Page& page, const KernelCost& cost,
                        std::uint64_t now_ns) noexcept;

// Counts a launch that goes on in any case: a debt where there is no credit.
void charge_managed(Link& link, shared::Page& page, const KernelCost& cost, std::uint64_t now_ns) noexcept;

}  // namespace explsched::gate
