// When what is known about handles stops being true.
//
// The driver reuses handles: a function of an unloaded module or a destroyed context may come back as
// another one. Each such event starts a new epoch, and what was learnt in an earlier one is not used again.
#pragma once

#include <atomic>
#include <cstdint>

namespace explsched::intercept {

extern std::atomic<std::uint32_t> g_handle_epoch;

inline std::uint32_t handle_epoch() noexcept { return g_handle_epoch.load(std::memory_order_acquire); }

inline void start_handle_epoch() noexcept { g_handle_epoch.fetch_add(1, std::memory_order_acq_rel); }

}  // namespace explsched::intercept
