// How a launch that is held up waits.
#pragma once

#include <cerrno>
#include <cstdint>
#include <ctime>

namespace explsched::gate {

// Sleeps, for less than a second. Signals may end it early.
inline void timed_wait(std::uint64_t sleep_ns) noexcept {
    const int kept_errno = errno;
    const timespec duration{0, static_cast<long>(sleep_ns)};
    nanosleep(&duration, nullptr);
    errno = kept_errno;
}

}  // namespace explsched::gate
