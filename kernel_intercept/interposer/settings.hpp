// What the environment says, read once.
#pragma once

#include <atomic>
#include <cstdint>

namespace explsched::intercept {

enum class Mode : std::uint8_t {
    kUnread,
    kOff,  // EXPLSCHED_INTERCEPT=off: every call goes straight to the driver
    kOn,
    kTracing,  // EXPLSCHED_TRACE=<file>: one line per launch
};

extern std::atomic<Mode> g_mode;

// Best-effort work waits on the GPU, by memory operations in the program's streams. EXPLSCHED_GATE=host:
// there are none, and best-effort launches wait on the host.
extern std::atomic<bool> g_gate_on_device;

// Known when mode() is.
extern std::atomic<bool> g_best_effort;

Mode read_environment() noexcept;

inline Mode mode() noexcept {
    const Mode known = g_mode.load(std::memory_order_acquire);
    return __builtin_expect(known == Mode::kUnread, 0) ? read_environment() : known;
}

// Whether this process asks a manager to be served as best-effort. Best-effort work must not outrank others'
// default streams.
inline bool is_best_effort() noexcept {
    return mode() != Mode::kOff && g_best_effort.load(std::memory_order_relaxed);
}

// The file of EXPLSCHED_TRACE; null unless mode() is kTracing.
const char* trace_path() noexcept;

}  // namespace explsched::intercept
