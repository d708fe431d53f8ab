// Opens the gates of this process when nobody else does: work that waits on the GPU must go on whoever has
// died.
#pragma once

#include <atomic>
#include <cstdint>

#include "kernel_intercept/shared/layout.hpp"

namespace explsched::gate {

constexpr std::uint64_t kLongestShutNs = 200'000'000;  // shut this long: open in any case, for a while

// Starts the thread that watches, once in a process. False if there is none: then nothing may wait on the
// GPU.
bool start_watchdog() noexcept;

// In the child of a fork, which has no such thread.
void forget_watchdog() noexcept;

// What the thread remembers of one gate.
struct GateWatch {
    std::uint64_t shut_since_ns{0};  // 0: open when last looked at
    std::uint64_t forced_until_ns{0};
};

// Looks at a gate, which opens at once where no manager is alive. `page`: null without one. True if it has
// opened the gate.
bool watch_gate(GateWatch& watch, std::atomic<std::uint32_t>& gate, const shared::Page* page,
                std::uint64_t now_ns) noexcept;

}  // namespace explsched::gate
