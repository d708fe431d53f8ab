// A clock that is cheaper than the system's and told in no unit: good enough to see that nothing was held up.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <x86intrin.h>
#else
#include "kernel_intercept/shared/clock.hpp"
#endif

namespace explsched::shared {

// At least one tick in a nanosecond, as x86's counters of today and yesterday have it.
inline std::uint64_t ticks() noexcept {
#if defined(__x86_64__)
    return __rdtsc();
#else
    return now_ns();
#endif
}

}  // namespace explsched::shared
