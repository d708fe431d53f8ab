// How long this machine keeps a process from running that only sleeps for 1 ms at a time, so that it can be
// told apart from what is the gate's doing.
#pragma once

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>

#include "kernel_intercept/shared/clock.hpp"

namespace stalls {

inline void raise_to(std::atomic<std::uint64_t>& most, std::uint64_t value) {
    if (value > most.load()) most.store(value);
}

inline void stay_on_core(unsigned core) {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(core % static_cast<unsigned>(sysconf(_SC_NPROCESSORS_ONLN)), &cores);
    if (sched_setaffinity(0, sizeof(cores), &cores) != 0) std::perror("sched_setaffinity");
}

// In memory shared with the control process, which alone writes it. When it was stalled, the last times.
struct Stalls {
    struct Stall {
        std::atomic<std::uint64_t> from_ns, to_ns;
    };
    std::array<Stall, 1024> last;
    std::atomic<std::uint64_t> count, longest_ns, up_to_ns;

    void add(std::uint64_t from_ns, std::uint64_t to_ns) {
        Stall& stall = last[count % last.size()];
        stall.from_ns = from_ns;
        stall.to_ns = to_ns;
        count.fetch_add(1);
    }

    std::uint64_t within(std::uint64_t from_ns, std::uint64_t to_ns) const {
        std::uint64_t sum_ns = 0;
        for (const Stall& stall : last) {
            const std::uint64_t begin_ns = std::max(stall.from_ns.load(), from_ns);
            const std::uint64_t end_ns = std::min(stall.to_ns.load(), to_ns);
            if (end_ns > begin_ns) sum_ns += end_ns - begin_ns;
        }
        return sum_ns;
    }

    // What of that time the control process could have run. Waits until it has seen all of it.
    std::uint64_t own_ns(std::uint64_t from_ns, std::uint64_t to_ns) const {
        while (up_to_ns.load() < to_ns) usleep(1000);
        return to_ns - from_ns - std::min(to_ns - from_ns, within(from_ns, to_ns));
    }
};

// The control process, on the core of what it is compared with.
[[noreturn]] inline void be_stalled(unsigned core, Stalls& stalls) {
    constexpr std::uint64_t kSleepNs = 1'000'000, kLeastStallNs = 1'000'000;
    stay_on_core(core);
    for (;;) {
        const std::uint64_t from_ns = explsched::shared::now_ns() + kSleepNs;
        usleep(kSleepNs / 1000);
        const std::uint64_t to_ns = explsched::shared::now_ns();
        if (to_ns > from_ns + kLeastStallNs) stalls.add(from_ns, to_ns);
        raise_to(stalls.longest_ns, to_ns - std::min(from_ns, to_ns));
        stalls.up_to_ns = to_ns;
    }
}

}  // namespace stalls
