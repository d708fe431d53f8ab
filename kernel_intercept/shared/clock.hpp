#pragma once

#include <time.h>

#include <cstdint>

namespace explsched::shared {

// Nanoseconds of CLOCK_MONOTONIC, which is the same for all processes of a machine.
inline std::uint64_t now_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U + static_cast<std::uint64_t>(now.tv_nsec);
}

}  // namespace explsched::shared
