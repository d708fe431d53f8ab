// EXPLSCHED_TRACE: one line per caught launch, for tests and for finding out what a program does.
#pragma once

#include "kernel_intercept/shared/kernel.hpp"

namespace explsched::intercept {

struct TracedLaunch {
    const char* entry;  // the driver's entry point
    const char* kernel;
    Dim3 grid;
    Dim3 block;
    std::uint32_t shared_bytes;  // dynamic
    bool granted;
};

// Appends `launch <entry> <kernel> <grid> <block> <shared> <granted|pass>`. Lines of several processes in
// one file do not mix. A file that cannot be written loses its lines: the program must go on.
void trace(const TracedLaunch& launch) noexcept;

}  // namespace explsched::intercept
