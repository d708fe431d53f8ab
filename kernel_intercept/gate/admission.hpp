// The decision before a launch: at once from what is in memory, or after a bounded wait.
#pragma once

#include <cstdint>

#include "kernel_intercept/gate/gate.hpp"
#include "kernel_intercept/gate/link.hpp"

namespace explsched::gate {

// Bound of the time a launch is held up; callers are promised 50 ms, of which this leaves some for waking up.
constexpr std::uint64_t kLongestWaitNs = 40'000'000;

// Whether the manager has shown life lately: within three of its longest recent beats, at least 30 ms and at
// most 40 ms.
bool manager_alive(const shared::Control& control, std::uint64_t now_ns) noexcept;

inline bool is_high(const shared::Page& page, std::uint32_t slot) {
    return (page.control.high.load(std::memory_order_relaxed) >> slot & 1) != 0;
}

Decision admit_managed(Link& link, shared::Page& page, int stream, const KernelCost& cost, Patience patience,
                       std::uint64_t now_ns) noexcept;

// The steps of a launch, without a wait: for models in virtual time, too.

// Policy `group`: whether the launch may go into its stream; and what goes with it.
bool has_room(const shared::Page& page, const shared::Signals& signals, std::uint32_t slot, int stream,
              CountedStream& counted) noexcept;
Boundary enter(shared::Page& page, shared::Signals& signals, std::uint32_t slot, int stream,
               CountedStream& counted, const KernelCost& cost, Patience patience,
               std::uint64_t now_ns) noexcept;

// Policy `quota`: whether there is credit, of which the launch is paid: its running time x the larger share.
bool pay(shared::Slot& slot, const KernelCost& cost) noexcept;

}  // namespace explsched::gate
